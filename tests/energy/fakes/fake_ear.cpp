// A library with the interface of EAR's: energy (mJ), time (ms), connect and error (codes);
// gpufreq<i> is what was set, in kHz.
#include <signal.h>

#include "state.h"

extern "C" {

int ear_connect() {
  set_state("connections", std::to_string(static_cast<int>(number_of("connections", 0)) + 1));
  return static_cast<int>(number_of("connect", 0));
}
void ear_disconnect() { set_state("connections", "0"); }
int ear_energy(unsigned long* mj, unsigned long* ms) {
  if (number_of("error", 0) != 0) raise(SIGPIPE);  // as when the daemon has ended
  *mj = static_cast<unsigned long>(number_of("energy", 0));
  *ms = static_cast<unsigned long>(number_of("time", 0));
  return static_cast<int>(number_of("error", 0));
}
int ear_set_gpufreq(int gpu, unsigned long khz) {
  if (state_of("permission", "yes") != "yes") return -1;
  set_state("gpufreq" + std::to_string(gpu), std::to_string(khz));
  return 0;
}

}  // extern "C"
