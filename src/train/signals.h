#pragma once

namespace kintsugi {

// While one of these lives, SIGTERM, SIGUSR1 and SIGINT ask the run to finish its step, save and
// stop. A second SIGINT ends the process at once. Restores what was there before.
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
