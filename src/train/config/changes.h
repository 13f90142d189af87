#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optim/schedule.h"
#include "train/config/config.h"

namespace kintsugi {

// What a resume changes: the configuration that a checkpoint was trained with, as its config.yaml,
// against the one that continues it.

struct ConfigChange {
  std::string key, before, after;
  bool operator==(const ConfigChange&) const = default;
};

// Every dotted key whose value differs; a list counts as one value. Keys that the older program did
// not know are left out.
std::vector<ConfigChange> config_changes(const std::string& before, const RunConfig& after);

Schedule schedule_of(const RunConfig& config);

// Says so if the learning rate of the next step is another one, by more than a tenth, than the old
// schedule would have had there; empty: it goes on smoothly.
std::string schedule_jump(const Schedule& before, const Schedule& after, std::int64_t next_step);

}  // namespace kintsugi
