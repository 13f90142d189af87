#include "launch/trial_jobs.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/child_output.h"
#include "core/error.h"
#include "core/log.h"
#include "core/statistics.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "launch/child_session.h"
#include "launch/job_description.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr int kWarmUp = 2;                  // steps for autotuning and graph capture
constexpr std::size_t kLongestError = 160;  // bytes of an error in a table

std::string shortened(std::string text) {
  if (text.size() <= kLongestError) return text;
  std::size_t end = kLongestError;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // UTF-8
  return text.substr(0, end) + "…";
}

// The last line of a log, for a trial that did not report its end.
std::string last_line(const fs::path& log) {
  std::ifstream file(log);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (line.find_first_not_of(" \t\r-") != std::string::npos) last = line;
  return last.empty() ? "no output" : last;
}

// The median tokens/s of the steps after the warm-up; 0 if the trial ended before `steps`.
double measured_in(const fs::path& metrics, int steps) {
  std::ifstream file(metrics);
  std::vector<double> rates;
  int done = 0;
  for (std::string line; std::getline(file, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("tokens_per_s")) continue;
    if (++done > kWarmUp && record["tokens_per_s"].is_number())
      rates.push_back(record["tokens_per_s"].get<double>());
  }
  return done < steps || rates.empty() ? 0 : median(rates);
}

}  // namespace

std::vector<std::string> layout_overrides(const Layout& l) {
  return {"layout=" + to_flow_yaml(l), fmt::format("batch.micro={}", l.micro_batch)};
}

TrialJobs::TrialJobs(TrialSetup setup)
    : setup_(std::move(setup)), program_(own_program().string()) {}

TrialJobs::~TrialJobs() {
  try {
    stop();
  } catch (const std::exception& error) {
    log_message(LogLevel::Error, error.what());
  }
}

fs::path TrialJobs::log_of(int number) const {
  return setup_.directory / fmt::format("trial-{:03}.log", number);
}
fs::path TrialJobs::run_of(int number) const {
  return setup_.directory / fmt::format("trial-{:03}", number);
}

fs::path TrialJobs::session_of(int number) const {
  return mpi_session_folder(fmt::format("tune-{}", number));
}

void TrialJobs::remove_files_of(int number) const {
  std::error_code ignored;
  fs::remove_all(run_of(number), ignored);
  fs::remove_all(session_of(number), ignored);
}

std::vector<std::string> TrialJobs::command(int number, const Layout& layout) const {
  std::vector<std::string> overrides = setup_.overrides;
  for (std::string& text : layout_overrides(layout)) overrides.push_back(std::move(text));
  overrides.push_back("run.dir=" + yaml_quoted(run_of(number).string()));
  overrides.push_back(fmt::format("train.steps={}", setup_.steps));
  for (const char* text :
       {"train.tokens=0", "train.eval_every=0", "train.save=false", "train.log_every=1",
        "optimizer.warmup_steps=0", "optimizer.decay_steps=0", "batch.ramp.start=0",
        "batch.ramp.increment=0", "batch.ramp.samples=0"})
    overrides.emplace_back(text);
  const std::string launch =
      with_value(with_value(setup_.launch, "{ranks}", std::to_string(layout.ranks())), "{trial}",
                 std::to_string(number));
  // The shell parses the launch command as typed by the user; the other arguments are passed as is.
  std::vector<std::string> words = {"/bin/sh", "-c",    launch + " \"$@\"", "sh",
                                    program_,  "train", setup_.config};
  for (const std::string& text : overrides) {
    words.emplace_back("--set");
    words.push_back(text);
  }
  return words;
}

void TrialJobs::start(int number, const Layout& layout) {
  fs::remove_all(run_of(number));  // left by a tuning that was killed
  auto port = std::make_shared<SupervisorPort>(false);
  const pid_t leader = start_session(
      command(number, layout), log_of(number),
      {{kSupervisorVariable, port->address()}, {kMpiSessionVariable, session_of(number).string()}});
  jobs_.push_back({number, leader, Clock::now(), std::move(port)});
}

TrialResult TrialJobs::result_of(int number, int status, const std::optional<RunEnd>& end) const {
  const double rate = measured_in(run_of(number) / "metrics.jsonl", setup_.steps);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && rate > 0) return {rate, {}};
  const std::string error =
      shortened(end && !end->failure.text.empty() ? end->failure.text : last_line(log_of(number)));
  // The shell's exit codes for a command that it cannot find or execute.
  if (WIFEXITED(status) && (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127))
    user_error("--launch '{}' cannot be run: {}", setup_.launch, error);
  if (WIFSIGNALED(status))
    return {0, fmt::format("killed by signal {}: {}", WTERMSIG(status), error)};
  return {0, error};
}

TrialJobs::Ended TrialJobs::finish(Running job, bool in_time) {
  const double seconds = std::chrono::duration<double>(Clock::now() - job.began).count();
  const int status = end_session(job.leader);
  const std::optional<RunEnd> end = job.port->poll(std::chrono::milliseconds(0)).end;
  std::erase_if(jobs_, [&](const Running& other) { return other.number == job.number; });
  Ended ended{.number = job.number, .seconds = seconds};
  ended.result =
      in_time
          ? result_of(job.number, status, end)
          : TrialResult{0, fmt::format("took longer than {}", format_duration(setup_.timeout_s))};
  ended.stopped = in_time && !ended.result.ran() && end && end->stop != StopCause::None;
  remove_files_of(job.number);
  return ended;
}

std::optional<TrialJobs::Ended> TrialJobs::poll() {
  for (const Running& job : jobs_) {
    job.port->poll(std::chrono::milliseconds(0));
    const bool over = session_is_over(job.leader);
    const bool late = Clock::now() - job.began > std::chrono::duration<double>(setup_.timeout_s);
    if (over || late) return finish(job, over);
  }
  return std::nullopt;
}

void TrialJobs::stop() {
  for (const Running& job : jobs_) ask_session_to_end(job.leader);  // all of them, then wait
  for (const Running& job : jobs_) {
    end_session(job.leader, true);
    remove_files_of(job.number);
  }
  jobs_.clear();
}

}  // namespace kintsugi
