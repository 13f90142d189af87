#include "train/stop_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr double kFileInterval_s = 1;  // a slow file system must not slow down short steps

double steady_time_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::optional<double> time_variable(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  try {
    return parse_real(text);
  } catch (const UserError&) {
    user_error("the environment variable {} is '{}', not a time in seconds since 1970: unset it",
               name, text);
  }
}

}  // namespace

std::optional<double> end_of_job(double launched_s, double limit_s) {
  std::optional<double> end = time_variable("KINTSUGI_END_TIME");
  if (!end) end = time_variable("SLURM_JOB_END_TIME");
  if (limit_s <= 0) return end;
  return std::min(launched_s + limit_s, end.value_or(std::numeric_limits<double>::infinity()));
}

void WallTime::note_step(double seconds) {
  steps_.push_back(seconds);
  if (steps_.size() > kRecentSteps) steps_.pop_front();
}

double WallTime::margin_s() const {
  if (fixed_margin_s_ > 0) return fixed_margin_s_;
  const double longest = steps_.empty() ? 0 : *std::max_element(steps_.begin(), steps_.end());
  const double save_s = save_s_.value_or(background_save_s_.value_or(kUnmeasuredSave_s));
  const double under_way_s = under_way_ ? background_save_s_.value_or(save_s) : 0;
  return under_way_s + save_s + 2 * longest + kExit_s;
}

StopRequests::StopRequests(Options options)
    : file_(std::move(options.file)),
      wall_time_(std::move(options.wall_time)),
      clock_(options.clock ? std::move(options.clock) : Clock(steady_time_s)) {}

// Their sum over 2^20 ranks is exact, and shows which sources are in it.
double StopRequests::weight(StopCause cause) {
  switch (cause) {
    case StopCause::None:
      return 0;
    case StopCause::Signal:
      return 1;
    case StopCause::Request:
      return std::ldexp(1.0, 20);
    case StopCause::File:
      return std::ldexp(1.0, 40);
    case StopCause::WallTime:
      return std::ldexp(1.0, 41);
  }
  failure("unknown cause of a stop request");
}

bool StopRequests::file_exists() {
  if (file_found_ || file_.empty()) return file_found_;
  const double now = clock_();
  if (now < next_look_s_) return false;
  next_look_s_ = now + kFileInterval_s;
  std::error_code unknown;  // a directory that cannot be read stops no run
  return file_found_ = std::filesystem::exists(file_, unknown);
}

StopCause StopRequests::cause_here() {
  if (StopSignals::received() != nullptr) return StopCause::Signal;
  if (!requested_stop().empty()) return StopCause::Request;
  if (file_exists()) return StopCause::File;
  if (wall_time_.limited() && wall_time_.is_over(clock_())) return StopCause::WallTime;
  return StopCause::None;
}

double StopRequests::ask() { return weight(cause_here()); }

void StopRequests::decide(double sum) {
  if (decided() || sum <= 0) return;
  if (std::fmod(sum, weight(StopCause::Request)) > 0)
    cause_ = StopCause::Signal;
  else if (std::fmod(sum, weight(StopCause::File)) > 0)
    cause_ = StopCause::Request;
  else
    cause_ = sum == weight(StopCause::File) ? StopCause::File : StopCause::WallTime;
}

std::string StopRequests::reason() const {
  switch (cause_) {
    case StopCause::None:
      return "";
    case StopCause::Signal:
      return "signal";
    case StopCause::Request:
      return requested_stop().empty() ? "request" : requested_stop();
    case StopCause::File:
      return "stop file";
    case StopCause::WallTime:
      return "wall time";
  }
  return "";
}

std::string StopRequests::description() const {
  switch (cause_) {
    case StopCause::Signal: {
      const char* const signal = StopSignals::received();
      return signal != nullptr ? signal : "a signal to another rank";
    }
    case StopCause::Request:
      return requested_stop().empty() ? "a request to another rank"
                                      : fmt::format("a request ({})", requested_stop());
    case StopCause::File:
      return file_.empty() ? "a stop file" : fmt::format("the stop file {}", file_.string());
    case StopCause::WallTime:
      return "the wall time";
    case StopCause::None:
      break;
  }
  return "nothing";
}

void StopRequests::consume_file() const {
  if (!decided() || !file_found_) return;
  std::error_code problem;
  std::filesystem::remove(file_, problem);
  if (problem)
    log_warning("cannot remove the stop file {} ({}): remove it before the run is started again",
                file_.string(), problem.message());
}

}  // namespace kintsugi
