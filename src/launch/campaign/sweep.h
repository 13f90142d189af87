#pragma once

#include <vector>

#include "launch/campaign/definition.h"
#include "launch/campaign/map_reader.h"

namespace kintsugi {

// The points of the keys grid, zip, list and filter of a node; none without them.
//
//   grid: {optimizer.lr: [1e-3, 2e-3], batch.global: [16, 32]}        every combination: 4
//   zip:  {model.layers: [2, 4], model.hidden_size: [64, 128]}        the i-th of each: 2
//   list: [{run.seed: 1}, {run.seed: 2, optimizer.lr: 5e-4}]          as they are: 2
//   filter: optimizer.lr * batch.global < 0.1
//
// Those of grid, zip and list are combined with each other; filter keeps some.
std::vector<CampaignPoint> read_sweep(MapReader& reader);

}  // namespace kintsugi
