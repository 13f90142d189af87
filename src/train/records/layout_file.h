#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/grid.h"
#include "parallel/schedule.h"
#include "tensor/arena.h"
#include "train/config/config.h"

namespace kintsugi {

// What layout.json says of a run, for its viewers. Its size does not depend on the length of the
// run: at most kMostListed allocations and kMostDrawnActions actions, and a few bytes per rank.
inline constexpr std::size_t kMostListed = 200;
inline constexpr int kMostDrawnActions = 4000;

struct LayoutFacts {
  const RunConfig& config;  // complete
  const Grid& grid;
  const Arena& arena;  // of rank 0
  Backend& backend;
  std::vector<std::string> nodes;  // the node of each rank
};
std::string layout_json(const LayoutFacts& facts);

// Its parts.

// The largest allocations of one side, and the rest of each region as "other".
nlohmann::ordered_json allocations_json(const Arena& arena, Side side);
// The times of all actions if a forward takes 1 and a backward 2. With many micro-batches the
// actions and the makespan are those of a step with fewer; the bubble is that of the whole step.
// A pipeline too large to draw has no actions. null without a pipeline.
nlohmann::ordered_json pipeline_json(const PipelineShape& shape);

}  // namespace kintsugi
