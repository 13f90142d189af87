#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/spec.h"

namespace kintsugi {

class Declaration;
struct LayerRanks;

// YaRN's factor of queries and keys: 0.1 m ln(factor) + 1.
double yarn_magnitude(const RopeScaling& scaling, double m);
// Rotation frequencies of the head's dimension pairs.
std::vector<double> rope_frequencies(const RopeSpec& spec);
// (positions, dim): cosines in the first half of a row, sines in the second.
std::vector<double> rope_table(const RopeSpec& spec, std::int64_t positions);
// ALiBi's slope per head: a geometric series. If the number of heads is not a power of two, the
// remaining heads get the odd powers of the next finer series.
std::vector<float> alibi_slopes(std::int64_t heads);
// RetNet's decay per head: 1 - 2^(-5 - head).
std::vector<float> retention_decays(std::int64_t heads);

// Constant tables, shared by all layers of a rank.
struct PositionTables {
  std::vector<std::pair<RopeSpec, Tensor>> ropes;  // (positions, dim), accumulator precision
  Tensor slopes, decays;                           // (heads of this rank), fp32

  Tensor rope(const RopeSpec& spec) const;
};
// Allocates the tables that the layers declare.
PositionTables allocate_position_tables(Arena& arena, const std::vector<Declaration>& layers,
                                        DType dtype, std::int64_t positions);
void fill_position_tables(Backend& backend, const PositionTables& tables, const LayerRanks& ranks);

}  // namespace kintsugi
