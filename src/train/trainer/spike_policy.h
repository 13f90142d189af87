#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "train/trainer/run_opening.h"
#include "train/trainer/save_policy.h"
#include "train/trainer/step_guard.h"

namespace kintsugi {

// What a run does about a spike of the loss or divergence (train.spikes): a warning, the end, or a
// rewind. A rewind is a resume in the same process. All ranks decide alike.
class SpikePolicy {
 public:
  SpikePolicy(RunContext& run, StepGuard& guard, SavePolicy& saves, RunOpening& opening)
      : run_(run), guard_(guard), saves_(saves), opening_(opening) {}

  // Why the run cannot go on from the last step; empty: it can.
  std::string trouble() const;
  // Goes back to an earlier checkpoint and leaves out the data since. False: this is not asked for,
  // did not help, or there is no such checkpoint.
  bool rewind(const std::string& why);

 private:
  std::string rewind_target() const;
  std::optional<RunOpening::Rewound> go_back(std::int64_t position);
  void set_target_aside(const std::filesystem::path& target, const std::string& damage);

  RunContext& run_;
  StepGuard& guard_;
  SavePolicy& saves_;
  RunOpening& opening_;
};

}  // namespace kintsugi
