#pragma once

#include "optim/matrix_updates.h"

namespace kintsugi {

struct MatrixLimits {
  std::int64_t batch = 0;  // elements of a batch of matrices
  std::int64_t block = 0;  // elements of results that replicas send at a time
  std::int64_t piece = 0;  // elements of a piece
};

// The rounds of an update on this rank.
std::vector<MatrixExchange> plan_exchanges(const Sharding& sharding, const OptimizerState& state,
                                           const UpdateRules& rules, const MatrixRule& rule,
                                           const MatrixLimits& limits);

}  // namespace kintsugi
