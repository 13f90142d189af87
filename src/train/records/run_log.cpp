#include "train/records/run_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

// Of the attempt before: they tell how long the steps after its last event took.
constexpr std::size_t kLastRecords = 500;

// JSON has no NaN and no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

constexpr const char* kEval = "eval";  // the results of tasks, in metrics.jsonl

// The step of a line of metrics.jsonl with the results of tasks.
std::optional<std::int64_t> evaluated_step(const std::string& line) {
  if (line.find(",\"eval\":[") == std::string::npos) return {};
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains(kEval)) return {};
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return {};
  return step->get<std::int64_t>();
}

std::string utc_now() { return iso_time(unix_time_s()); }

// Names and messages may contain invalid UTF-8.
std::string to_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// For a full disk: overwrites the file in its existing blocks. Readers may briefly see a mixture of
// the old and the new text.
bool overwrite(const std::filesystem::path& path, std::string_view text) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file < 0) return false;
  struct stat status {};
  const auto size = static_cast<ssize_t>(text.size());
  return ::fstat(file, &status) == 0 && status.st_blocks * 512 >= size &&
         ::pwrite(file, text.data(), text.size(), 0) == size && ::ftruncate(file, size) == 0;
}

Json to_json(const Straggler& straggler) {
  return {{"rank", straggler.rank}, {"node", straggler.node}, {"ratio", straggler.ratio}};
}

void add_end(Json& json, const RunState& state) {
  if (state.exit_code) json["exit_code"] = *state.exit_code;
  if (!state.reason.empty()) json["reason"] = state.reason;
  if (!state.message.empty()) json["message"] = state.message;
  const RankFailure& failure = state.failure;
  if (failure.kind != FailureKind::Unknown) json["failure"] = to_string(failure.kind);
  if (failure.rank() >= 0) json["rank"] = failure.rank();
  if (const std::string node = failure.node(); !node.empty()) json["node"] = node;
  if (!failure.file.empty()) json["file"] = failure.file;
}

}  // namespace

RunState failed_state(const RankFailure& failure, bool shared) {
  const bool diverged = failure.kind == FailureKind::Diverged;
  return {.state = diverged ? "diverged" : "failed",
          .exit_code = failure.exit_code(),
          .reason = diverged                                     ? "diverged"
                    : failure.exit_code() == exit_code::kMistake ? "mistake"
                                                                 : "failure",
          .message = failure.text,
          .shared = shared,
          .failure = failure};
}

RunLog::RunLog(const std::filesystem::path& directory, std::int64_t total_steps, AttemptClock clock,
               SinkOptions sinks, const NotifyConfig& notify)
    : directory_(directory),
      total_steps_(total_steps),
      files_(directory),
      events_(files_, directory, notify, clock.now_s) {
  sinks_.emplace(directory, total_steps, clock.now_s, sinks);
  const std::filesystem::path path = directory / "metrics.jsonl";
  drop_partial_line(path);
  std::ifstream file(path);
  std::deque<std::string> last;
  for (std::string line; std::getline(file, line); ++sequence_) {
    sinks_->add_earlier(line);
    if (const auto step = evaluated_step(line)) evaluated_.insert(*step);
    last.push_back(std::move(line));
    if (last.size() > kLastRecords) last.pop_front();
  }
  goodput_.emplace(directory, std::move(clock), std::vector(last.begin(), last.end()));
}

void RunLog::flush() {
  if (unwritten_.empty()) return;
  append_to_file(directory_ / "metrics.jsonl", unwritten_);
  unwritten_.clear();
}

void RunLog::record(const StepRecord& r, bool saving) {
  Json json = {{"step", r.step}, {"seq", sequence_++}};
  add_metrics(json, r);
  if (r.energy_since_launch) add_since_launch(json, *r.energy_since_launch);
  if (r.straggler) {
    json["straggler"] = to_json(*r.straggler);
    straggler_ = r.straggler;
  }
  if (r.valid.size() > 1)
    for (const StepRecord::Valid& set : r.valid) {
      json["valid"][set.name] = {{"loss", number(set.loss)},
                                 {"bits_per_byte", number(set.bits_per_byte)}};
      if (set.accuracy) json["valid"][set.name]["accuracy"] = number(set.accuracy);
      if (set.macro_f1) json["valid"][set.name]["macro_f1"] = number(set.macro_f1);
    }
  for (const StepRecord::TaskMetric& one : r.tasks)
    json[kEval].push_back({{"task", one.task},
                           {"metric", one.metric},
                           {"value", number(one.value)},
                           {"stderr", number(one.stderr_of_mean)}});
  const std::string line = to_text(json);
  unwritten_ += line + "\n";
  sinks_->add(r, line, *goodput_);
  try {
    flush();
  } catch (const Failure&) {
    if (!saving) throw;
  }
}

// Does not throw: a failed status write must not end the run.
void RunLog::write_status(const std::string& text, bool last) noexcept {
  const std::filesystem::path path = directory_ / "status.json";
  try {
    // Not synced while the run trains: the step loop would wait for the disk.
    write_file_atomically(path, text, last ? OnDisk::Now : OnDisk::Later);
  } catch (const std::exception& error) {
    // The last status must not say that the run is still running.
    if ((last && overwrite(path, text)) || std::exchange(status_lost_, true)) return;
    log_warning("{}: the run continues, but status.json is out of date", error.what());
  }
}

void RunLog::status(const RunState& state, const StepRecord& last, std::optional<double> valid_loss,
                    double eta_s, const std::string& checkpoint) noexcept {
  try {
    Json json = {{"state", state.state},
                 {"step", last.step},
                 {"total_steps", total_steps_},
                 {"tokens", last.tokens},
                 {"loss", number(last.loss)},
                 {"valid_loss", number(valid_loss)},
                 {"tokens_per_s", number(last.tokens_per_s)},
                 {"eta_s", number(eta_s)},
                 {"last_checkpoint", checkpoint.empty() ? Json(nullptr) : Json(checkpoint)},
                 {"pid", ::getpid()},
                 {"updated", utc_now()}};
    if (!last.stage.empty()) json["stage"] = last.stage;
    if (straggler_) json["straggler"] = to_json(*straggler_);
    add_end(json, state);
    if (state.state != "running") goodput_->end(state.state, state.reason, state.exit_code);
    goodput_->add_to(json);
    if (state.state != "running") sinks_->end(*goodput_, state.exit_code.value_or(1));
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      status_ = to_text(json);
      write_status(to_text(json, 2) + "\n", state.state != "running");
    }
    if (state.state == "running") return;
    events_.end(state.state, last.step,
                state.message.empty() ? fmt::format("{} after step {}", state.state, last.step)
                                      : state.message);
    if (state.shared) events_.wait_for_delivery();
  } catch (...) {
  }
}

std::function<void()> RunLog::fail(const RankFailure& failure) noexcept {
  try {
    const std::optional<std::int64_t> step = write_failure(failure);
    if (!step) return {};
    events_.end("failed", *step, failure.text);
    return events_.delivery();
  } catch (...) {
    return {};
  }
}

// Returns the last step; nothing if the run had not begun.
std::optional<std::int64_t> RunLog::write_failure(const RankFailure& failure) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  if (status_.empty()) return {};
  Json json = Json::parse(status_);
  const RunState state = failed_state(failure, false);
  json["state"] = state.state;
  add_end(json, state);
  json["updated"] = utc_now();
  goodput_->end(state.state, state.reason, state.exit_code);
  goodput_->add_to(json);
  write_status(to_text(json, 2) + "\n", true);
  sinks_->end(*goodput_, state.exit_code.value_or(1));
  return json.value("step", std::int64_t{0});
}

}  // namespace kintsugi
