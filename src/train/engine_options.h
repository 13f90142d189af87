#pragma once

#include "train/config/config.h"
#include "train/engine.h"

namespace kintsugi {

// The workload of a configuration, which must outlive it.
Workload workload_of(const StageConfig& config);
// The configuration's layout completed for `ranks` ranks. Throws UserError if it is invalid.
Layout layout_on(const StageConfig& config, int ranks);
OptimizerSettings optimizer_settings(const StageConfig& config);
// Empty unless the run trains on preference pairs.
std::optional<PreferenceOptions> preference_options(const StageConfig& config);
EngineOptions engine_options(const StageConfig& config, int ranks = 1);

// For `layout: auto`: chooses a layout for `ranks` ranks, `node` of them per node, that fits the
// memory of this rank's device. One rank chooses for all ranks. dp stays auto.
Layout automatic_layout(const StageConfig& config, Backend& backend, int ranks, int node);

}  // namespace kintsugi
