#include "train/signals.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>
#include <utility>

namespace kintsugi {
namespace {

constexpr std::array<int, 4> kSignals = {SIGTERM, SIGUSR1, SIGINT, SIGHUP};
volatile sig_atomic_t received_signal = 0;
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
  if (signal == SIGINT && received_signal == SIGINT) {
    if (!has_callback.exchange(false)) _exit(kInterrupted);
    sem_post(&second_interrupt);
  }
  received_signal = signal;
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

}  // namespace kintsugi
