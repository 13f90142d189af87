#pragma once

namespace kintsugi {

// While one of these lives, SIGTERM, SIGUSR1, SIGINT and SIGHUP ask the run to finish its step,
// save and stop; a second SIGINT ends the process at once. SIGPIPE is ignored: `| tee` dies of the
// same Ctrl-C, and a line that cannot be printed must not cost a checkpoint. Restores what was
// there.
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
