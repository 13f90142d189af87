#pragma once

#include <functional>
#include <string>

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

// Sets a callback that runs, in another thread, before a second SIGINT ends the process; a third
// SIGINT does not wait for it. An empty function: none.
void before_second_interrupt(std::function<void()> callback);

// Asks the run of this process to finish its step, save and stop, as a signal does. `reason` is the
// reason in status.json, such as "supervisor lost". Thread-safe. The first request counts, also one
// that arrives before the run; the destructor of the outermost StopSignals forgets it.
void request_stop(const std::string& reason);
std::string requested_stop();  // the reason; empty while nothing has been requested

}  // namespace kintsugi
