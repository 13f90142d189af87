#include "cli/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <system_error>

#include "comm/rank_failure.h"
#include "core/error.h"
#include "core/host/free_memory.h"
#include "core/log.h"

namespace kintsugi {
namespace {

constexpr int kClosedPipe = 128 + SIGPIPE;  // what a shell reports for a process ended by SIGPIPE

// Reports that standard output could not be written; returns the exit code.
int report_output(int reason) {
  if (reason == EPIPE) return kClosedPipe;
  log_message(LogLevel::Error,
              fmt::format("cannot write standard output: {}", std::strerror(reason)));
  return 1;
}

bool output_failed() { return std::ferror(stdout) != 0 || !std::cout; }

std::atomic<int> shutdown_signals = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void count_shutdown_signal(int signal) {
  if (shutdown_signals > 0) _exit(128 + signal);
  shutdown_signals = 1;
}

}  // namespace

void prepare_process() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
      (void)!::open("/dev/null", O_RDWR);  // gets the lowest free descriptor: this one
  for (const int signal : {SIGXFSZ, SIGPIPE}) ::signal(signal, SIG_IGN);
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) disable_live_line();
}

int report(const std::exception& error) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && output_failed())  // from fmt::print
    return report_output(system->code().value());
  log_message(LogLevel::Error, error.what());
  return failure_of(error, {}).exit_code();
}

int finish_process(int code) {
  int reason = errno;  // of an earlier failed write
  if (std::fflush(stdout) != 0) reason = errno;
  std::cout.flush();
  if (code == 0 && output_failed())
    code = report_output(reason);
  else if (code == 0 && lost_output() != 0 && lost_output() != EPIPE)
    code = report_output(lost_output());  // lost log messages matter, except to a closed pipe
  if (free_address_space() != kUnlimited) {
    // Under an address space limit OpenBLAS's threads may retry an allocation for ever, and its
    // destructor would wait for them.
    std::fflush(nullptr);
    ::_exit(code);
  }
  return code;
}

ShutdownSignals::ShutdownSignals() {
  shutdown_signals = 0;
  struct sigaction action {};
  action.sa_handler = count_shutdown_signal;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &interrupt_);
  ::sigaction(SIGTERM, &action, &terminate_);
}

ShutdownSignals::~ShutdownSignals() {
  ::sigaction(SIGINT, &interrupt_, nullptr);
  ::sigaction(SIGTERM, &terminate_, nullptr);
}

bool ShutdownSignals::received() { return shutdown_signals > 0; }

}  // namespace kintsugi
