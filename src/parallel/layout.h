#pragma once

#include <cstdint>
#include <optional>

#include "comm/grid.h"

namespace kintsugi {

// How a run asks to be spread; what is left open is filled in from the number of ranks.
struct LayoutRequest {
  std::int64_t tp = 1, cp = 1, pp = 1;
  std::optional<std::int64_t> dp = {};  // none: whatever ranks are left
  std::int64_t zero = 0;
  std::int64_t shard_group = 0;  // data ranks that share one sharded copy; 0: all
  std::int64_t batch = 1;        // sequences per step
  std::int64_t micro = 1;        // sequences per forward pass on one rank
};

// The grid of a job of `ranks`. Whatever does not divide is a UserError that names the nearest
// choices that do.
Grid fit_layout(const LayoutRequest& request, int ranks);

}  // namespace kintsugi
