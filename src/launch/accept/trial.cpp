#include "launch/accept/trial.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>

#include "comm/supervisor_link.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/units.h"
#include "launch/child_session.h"
#include "launch/job_description.h"
#include "report/runs/step_series.h"
#include "train/checkpoint/checkpoint.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(20);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string this_program() { return own_program().string(); }

// The value of a variable in the environment of a process; empty: it has none, or is another
// user's.
std::string variable_of(const std::string& environment, const std::string& name) {
  const std::string begin = name + "=";
  std::size_t at = environment.starts_with(begin) ? 0 : environment.find('\0' + begin);
  if (at == std::string::npos) return {};
  at += begin.size() + (at > 0 ? 1 : 0);
  return environment.substr(at, environment.find('\0', at) - at);
}

int rank_in(const std::string& environment) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PMIX_RANK"})
    if (const std::string text = variable_of(environment, name); !text.empty())
      return std::atoi(text.c_str());
  return -1;
}

}  // namespace

std::string AcceptTrial::problem() const {
  if (ran()) return {};
  if (end && !end->failure.text.empty()) return end->failure.text;
  const std::string see = fmt::format("; see {}", log.string());
  if (stopped) return "it was stopped" + see;
  if (!in_time) return fmt::format("it did not end within {}", format_duration(seconds)) + see;
  return fmt::format("it ended with exit code {}", exit_code) + see;
}

AcceptTrials::AcceptTrials(std::string launch, int node_ranks, fs::path directory)
    : launch_(std::move(launch)), node_ranks_(node_ranks), directory_(std::move(directory)) {}

AcceptTrial AcceptTrials::run(const std::string& name, int ranks,
                              const std::vector<std::string>& arguments, double limit_s,
                              const std::function<void(const std::string&)>& meanwhile) const {
  const int nodes = (ranks + node_ranks_ - 1) / node_ranks_;
  const std::string launch = with_value(with_value(launch_, "{ranks}", std::to_string(ranks)),
                                        "{nodes}", std::to_string(nodes));
  // The shell parses the launch command as the user typed it; the other arguments are passed as is.
  std::vector<std::string> words = {"/bin/sh", "-c", launch + " \"$@\"", "sh", this_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  SupervisorPort port(launch_.empty());
  AcceptTrial trial{.log = directory_ / (name + ".log")};
  const auto begin = Clock::now();
  const pid_t leader = start_session(words, trial.log, {{kSupervisorVariable, port.address()}});
  while (!session_is_over(leader)) {
    port.poll(kPoll);
    if (meanwhile) meanwhile(port.address());
    trial.in_time = seconds_since(begin) < limit_s;
    if (!trial.in_time || StopSignals::received() != nullptr) break;
    std::this_thread::sleep_for(kPoll);  // poll returns at once after the end of a run
  }
  const int status = end_session(leader);
  trial.seconds = seconds_since(begin);
  trial.end = port.poll(std::chrono::milliseconds(0)).end;
  trial.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  trial.stopped = StopSignals::received() != nullptr || trial.exit_code == exit_code::kStopped ||
                  trial.exit_code == 128 + SIGTERM ||  // Slurm, at the end of a job
                  (trial.end && trial.end->exit_code == exit_code::kStopped);
  if (trial.stopped) return trial;
  if (!trial.end && (trial.exit_code == 126 || trial.exit_code == 127))
    user_error("--launch '{}' cannot be run: see {}", launch_, trial.log.string());
  return trial;
}

std::optional<int> kill_one_rank(const std::string& supervisor) {
  const std::string program = this_program();
  pid_t chosen = 0;
  int highest = -2, found = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const auto process = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    if (process <= 0) continue;
    std::error_code error;
    if (fs::read_symlink(entry.path() / "exe", error) != program || error) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string environment{std::istreambuf_iterator<char>(file), {}};
    if (variable_of(environment, kSupervisorVariable) != supervisor) continue;
    ++found;
    if (const int rank = rank_in(environment); rank > highest) highest = rank, chosen = process;
  }
  if (chosen == 0 || (highest == 0 && found > 1)) return {};
  return ::kill(chosen, SIGKILL) == 0 ? std::optional(highest) : std::nullopt;
}

RunSteps read_steps(const fs::path& run) {
  RunSteps steps;
  StepSeries series(run / "metrics.jsonl");
  series.update();
  for (std::size_t row = 0; row < series.rows(); ++row) {
    const auto value = [&](const char* key) { return static_cast<double>(series.value(key, row)); };
    steps.loss.push_back(value("loss"));
    steps.norm.push_back(value("grad_norm"));
    steps.step_s.push_back(value("step_time_s"));
    steps.comm_busy_s.push_back(value("comm_busy_s"));
    steps.comm_wait_s.push_back(value("comm_wait_s"));
    steps.gpu_j.push_back(value("energy_gpu_j"));
    steps.node_j.push_back(value("energy_node_j"));
    steps.memory_bytes = value("memory_bytes");
  }
  return steps;
}

CheckpointFiles read_checkpoint(const fs::path& run) {
  CheckpointFiles files;
  const auto model = peek_latest_checkpoint(run / "checkpoints");
  if (!model) return files;
  files.step = saved_state(*model).step;
  for (const fs::path& folder : {*model, state_directory(*model)})
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".safetensors") continue;
      const MappedFile file(entry.path());
      files.bytes += static_cast<double>(file.bytes().size());
      files.hashes.emplace_back(entry.path().filename().string(),
                                hex64(hash64(file.bytes().data(), file.bytes().size())));
      file.check_intact();
    }
  std::sort(files.hashes.begin(), files.hashes.end());
  return files;
}

}  // namespace kintsugi
