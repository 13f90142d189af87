#pragma once

#include <cstdint>
#include <vector>

#include "optim/update_rule.h"

namespace kintsugi {

// Which rank transforms which matrices of a MatrixRule, and when. All ranks with the same layers
// compute the same plan.

// Parameters that one rank transforms at once: their matrices have the same shape.
using MatrixBatch = std::vector<int>;  // indices in the set
// What all ranks transform at the same time, by owner; a batch may be empty.
using MatrixRound = std::vector<MatrixBatch>;

// The matrices of a parameter, of which all have the same shape.
struct MatrixShape {
  std::int64_t rows = 0, columns = 0, count = 1;
  bool operator==(const MatrixShape&) const = default;
};
MatrixShape matrix_shape(const Parameter& parameter);

// Gives each parameter of the rule to one of `owners` ranks, so that the most loaded one has as few
// FLOPs as possible (largest first, to the least loaded). A batch has at most `most` elements, or
// one parameter.
std::vector<MatrixRound> plan_matrices(const ParameterSet& set, const UpdateRules& rules,
                                       const MatrixRule& rule, int owners, std::int64_t most);

}  // namespace kintsugi
