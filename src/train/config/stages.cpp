// The stages of a run, as configurations.
#include <algorithm>

#include "core/error.h"
#include "train/config/config.h"

namespace kintsugi {

std::int64_t RunConfig::stage_count() const {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(stages.size()));
}

RunConfig RunConfig::at_stage(std::int64_t number) const {
  if (number < 0 || number >= stage_count())
    user_error("there is no stage {}: the configuration has {}", number + 1, stage_count());
  if (stages.empty()) return *this;
  RunConfig config = stages[static_cast<std::size_t>(number)];
  config.stages = stages;
  return config;
}

RunConfig RunConfig::alone() const {
  RunConfig config = *this;
  config.stages.clear();
  config.stage = 0;
  return config;
}

std::int64_t RunConfig::steps_after() const {
  std::int64_t steps = 0;
  for (std::size_t i = static_cast<std::size_t>(stage) + 1; i < stages.size(); ++i)
    steps += stages[i].total_steps();
  return steps;
}

}  // namespace kintsugi
