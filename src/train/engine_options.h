#pragma once

#include "train/config/config.h"
#include "train/engine.h"

namespace kintsugi {

// What a configuration trains. The configuration must outlive it.
Workload work_of(const RunConfig& config);
// Its layout on so many ranks, filled in and checked: UserError.
Layout layout_on(const RunConfig& config, int ranks);
EngineOptions engine_options(const RunConfig& config, int ranks = 1);

// For `layout: auto`: a layout for `ranks` in nodes of `node`, by the memory that this rank's
// device has. One rank chooses for all. Its dp stays auto.
Layout automatic_layout(const RunConfig& config, Backend& backend, int ranks, int node);

}  // namespace kintsugi
