#include "cli/shutdown_signals.h"

#include <unistd.h>

namespace kintsugi {
namespace {

volatile sig_atomic_t shutdown_signals = 0;

void count_shutdown_signal(int signal) {
  if (shutdown_signals > 0) _exit(128 + signal);
  shutdown_signals = 1;
}

}  // namespace

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
