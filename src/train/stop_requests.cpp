#include "train/stop_requests.h"

#include <fmt/format.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr std::array<int, 4> kSignals = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};
std::atomic<int> received_signal = 0;  // written by the handler, read by ranks in any thread
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<int> handlers = 0;  // objects that exist; the first one installs the handlers
std::array<struct sigaction, kSignals.size()> previous;
struct sigaction previous_pipe;
std::mutex request_mutex;
std::string request;  // guarded by request_mutex

constexpr int kInterrupted = 130;
std::mutex callback_mutex;
std::function<void()> callback;          // guarded by callback_mutex
std::atomic<bool> has_callback = false;  // that has not been called yet
sem_t second_interrupt;                  // posted by the handler

// A handler may not do what a callback does, so a thread waits for it.
void wait_for_second_interrupt() {
  while (sem_wait(&second_interrupt) != 0) {
  }
  const std::lock_guard lock(callback_mutex);
  try {
    if (callback) callback();
  } catch (...) {  // the process ends in any case
  }
  _exit(kInterrupted);
}

void handle(int signal) {
  const int saved = errno;
  if (signal == SIGINT && received_signal == SIGINT) {
    if (!has_callback.exchange(false)) _exit(kInterrupted);
    sem_post(&second_interrupt);
  }
  received_signal = signal;
  errno = saved;
}

}  // namespace

StopSignals::StopSignals() {
  if (handlers++ > 0) return;
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &previous[i]);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, &previous_pipe);
}

StopSignals::~StopSignals() {
  if (--handlers > 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  sigaction(SIGPIPE, &previous_pipe, nullptr);
  const std::lock_guard lock(request_mutex);
  request.clear();
}

const char* StopSignals::received() {
  switch (received_signal) {
    case 0:
      return nullptr;
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "SIGINT";
  }
}

void before_second_interrupt(std::function<void()> next) {
  static const bool started = [] {
    sem_init(&second_interrupt, 0, 0);
    std::thread(wait_for_second_interrupt).detach();
    return true;
  }();
  const std::lock_guard lock(callback_mutex);
  callback = std::move(next);
  has_callback = started && callback != nullptr;
}

void request_stop(const std::string& reason) {
  const std::lock_guard lock(request_mutex);
  if (request.empty()) request = reason.empty() ? "request" : reason;
}

std::string requested_stop() {
  const std::lock_guard lock(request_mutex);
  return request;
}

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
  const double longest = steps_.empty() ? 0 : *std::ranges::max_element(steps_);
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
