#pragma once

#include <signal.h>

#include <exception>

namespace kintsugi {

// Process set-up and exit, common to all commands.

// Called first. Opens /dev/null for closed descriptors 0 to 2, so that no file gets one of these
// numbers and then messages written into it. Ignores SIGXFSZ and SIGPIPE, so that a file size limit
// or a closed pipe is an error of write(). Disables the live line under mpirun.
void prepare_process();

// Logs the error that ended a command. Returns the exit code (core/error.h).
int report(const std::exception& error);

// Called last; returns the exit code. Instead of 0 it is 1 if standard output could not be written
// completely, and 141 without a message if the reader closed the pipe.
int finish_process(int code);

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
