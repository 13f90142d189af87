#pragma once

#include <signal.h>

namespace kintsugi {

// For servers: while it exists, the first SIGINT or SIGTERM is only noted, and the second ends the
// process.
class ShutdownSignals {
 public:
  ShutdownSignals();
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;
  static bool received();

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

}  // namespace kintsugi
