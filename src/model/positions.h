#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace kintsugi {

// Rotation frequencies of the head's dimension pairs, with Llama 3.1's scaling when the model has
// it.
std::vector<double> rope_frequencies(const ModelConfig& config);
// (positions, head_dim): cosines in the first half of a row, sines in the second.
std::vector<double> rope_table(const ModelConfig& config, std::int64_t positions);
// ALiBi's slope per head: a geometric series, with the odd powers of the next one when heads are no
// power of two.
std::vector<float> alibi_slopes(std::int64_t heads);

}  // namespace kintsugi
