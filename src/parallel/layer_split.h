#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/slice.h"
#include "model/stage.h"
#include "parallel/schedule.h"

namespace kintsugi {

// How many layers each part of a pipeline gets: the longest part as short as it can be, where the
// head counts as many layers as it takes time; of equals, those without embedding and head get
// more.
std::vector<int> balanced_split(const ModelConfig& config, int parts);
// A split that was given, or the balanced one if it is empty; UserError unless it has `parts` parts
// with all layers and none without.
std::vector<int> checked_split(const ModelConfig& config, int parts, std::vector<int> split);

// "7,9,9,7"; empty for "auto". UserError for anything else.
std::vector<int> parse_split(const std::string& text);

// The parts that one pipeline rank has, chunk by chunk.
std::vector<StagePart> stage_parts(const std::vector<int>& split, int stages, int rank);
// What it holds of the model with them.
ModelSlice slice_of(const std::vector<StagePart>& parts, int tp, int tp_rank,
                    bool sequence_parallel);

}  // namespace kintsugi
