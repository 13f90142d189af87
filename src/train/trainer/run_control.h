#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "train/control_request.h"
#include "train/trainer/run_context.h"

namespace kintsugi {

// Obeys `kintsugi ctl` between two steps. Rank 0 looks at the file; all ranks learn of it by the
// all-reduce of the step, and obey after the same one. All ranks call all functions.
class RunControl {
 public:
  explicit RunControl(RunContext& run);

  // Before the run is opened: with what was changed before, as far as it is known.
  void read_history();
  // The values of the step that follows, also after a rewind or from an earlier checkpoint.
  void settle();

  // For the all-reduce of a step: 1 from rank 0 if there is a request.
  double asks();
  void decide(double asks) { asked_ = asks > 0; }
  // After the step: obeys or refuses the request, if there is one.
  void take_request();

  // At the end of the run, and of its stages: refuses a request that came too late.
  void close();

  bool wants_checkpoint() const { return taken_.checkpoint; }
  bool wants_evaluation() const { return taken_.evaluate; }

 private:
  using Clock = std::chrono::steady_clock;

  void set_values(const StageConfig& now);
  std::string accepted_text() const;
  void remove_request() const;
  void change(const ControlRequest& request);
  void note(const char* event, const std::string& message) const;  // on rank 0

  RunContext& run_;
  StageConfig given_;  // as the user's configuration says
  std::vector<ControlChange> changes_;
  ControlRequest taken_ = {};  // of the last step
  Clock::time_point next_look_ = {};
  bool asked_ = false;
};

}  // namespace kintsugi
