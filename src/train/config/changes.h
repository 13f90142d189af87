#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/schedule.h"
#include "train/config/config.h"

namespace kintsugi {

// Compares the configuration of a checkpoint (its config.yaml) with that of the run that resumes
// from it.

struct ConfigChange {
  std::string key, before, after;
  bool operator==(const ConfigChange&) const = default;
};

// All dotted keys whose values differ; a list counts as one value. Keys that are missing in
// `before` (an older version wrote it) are skipped.
std::vector<ConfigChange> config_changes(const std::string& before, const RunConfig& after);

Schedule schedule_of(const StageConfig& config);

// Returns a warning if the learning rate of the next step differs by more than 10 % between the old
// and the new schedule; otherwise "".
std::string schedule_jump(const Schedule& before, const Schedule& after, std::int64_t next_step);

// Returns the same kind of warning for every stage after `first` whose learning rate does not
// continue that of the stage before.
std::vector<std::string> planned_jumps(const RunConfig& run, std::int64_t first);

}  // namespace kintsugi
