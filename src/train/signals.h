#pragma once

namespace kintsugi {

// While this object exists, SIGTERM, SIGUSR1, SIGINT and SIGHUP ask the run to finish its step,
// save and stop; a second SIGINT ends the process at once. SIGPIPE is ignored: Ctrl-C also kills
// `| tee`, and a line that cannot be printed must not prevent the checkpoint. The destructor
// restores the previous handlers. Objects may be nested; the outermost counts.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal's name, or nullptr while none has arrived.
  static const char* received();
};

}  // namespace kintsugi
