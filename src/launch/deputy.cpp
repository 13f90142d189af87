#include "launch/deputy.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/child_output.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/child_session.h"
#include "report/runs/run_status.h"

namespace kintsugi {
namespace {

constexpr auto kDeputyBeat = std::chrono::seconds(5);
constexpr auto kDeputyPatience = std::chrono::seconds(60);
constexpr auto kDeputyPause = std::chrono::seconds(30);  // between two starts
constexpr double kRequeueAnswer_s = 60;

std::filesystem::path beat_file(const std::filesystem::path& launch_directory) {
  return launch_directory / "alive";
}

// Opens the file: network file systems then ask the server instead of their cache.
std::string beat_of(const std::filesystem::path& launch_directory) {
  std::ifstream file(beat_file(launch_directory));
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace

DeputyKeeper::DeputyKeeper(const JobDescription& job) : job_(job) {}

DeputyKeeper::~DeputyKeeper() {
  if (deputy_ <= 0) return;
  try {
    end_session(deputy_);
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

void DeputyKeeper::work(const std::vector<std::string>& nodes) {
  const auto now = Clock::now();
  if (nodes.empty()) return;
  if (now >= next_beat_) {
    next_beat_ = now + kDeputyBeat;
    // In place: a rename would give the file another number, which network file systems cache.
    std::ofstream(beat_file(job_.directory())) << ++beats_ << "\n";
  }
  if (deputy_ > 0 && session_is_over(deputy_)) {
    end_session(deputy_);
    deputy_ = 0;
  }
  if (deputy_ > 0 || now < next_start_) return;
  next_start_ = now + kDeputyPause;
  try {
    deputy_ = start_session(
        {"srun", "--overlap", "--nodes=1", "--ntasks=1", "--gres=none", "--mpi=none",
         "--nodelist=" + nodes.front(), job_.program, "launch", "--deputy", job_.run_dir},
        job_.directory() / "deputy.log");
  } catch (const std::exception& error) {
    log_warning("no deputy of the supervisor: {}", error.what());
  }
}

bool watch_supervisor(const std::filesystem::path& launch_directory,
                      std::chrono::duration<double> patience, const std::function<bool()>& ended) {
  std::string last = beat_of(launch_directory);
  auto changed = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - changed < patience) {
    if (ended && ended()) return false;
    std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(patience / 4, kDeputyBeat));
    const std::string beat = beat_of(launch_directory);
    if (beat == last) continue;
    last = beat;
    changed = std::chrono::steady_clock::now();
  }
  return true;
}

int run_deputy(const std::filesystem::path& run_dir) {
  const bool lost = watch_supervisor(run_dir / "launch", kDeputyPatience,
                                     [&] { return read_exit_code(run_dir).has_value(); });
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (!lost || job == nullptr) return exit_code::kFinished;
  log_warning("the supervisor gives no sign of life: putting job {} back into the queue", job);
  const ChildOutput output = run_captured({"scontrol", "requeue", job}, kRequeueAnswer_s);
  if (output.code == 0) return exit_code::kFinished;
  log_message(LogLevel::Error, fmt::format("scontrol requeue {}: {}", job, output.error));
  return exit_code::kFailure;
}

}  // namespace kintsugi
