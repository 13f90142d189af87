#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/shard.h"
#include "model/stage.h"
#include "parallel/schedule.h"

namespace kintsugi {

// The number of layers of each of `chunks` pipeline chunks (stages × chunks per rank). Minimizes
// the time of the slowest chunk; the LM head counts as many layers as it takes time. Among equals,
// chunks without embedding and head get more layers.
std::vector<int> balanced_split(const ModelConfig& config, int chunks);
// Returns the given split, or the balanced one if it is empty. Throws UserError unless the split
// has `chunks` numbers of at least 1 that add up to all layers.
std::vector<int> checked_split(const ModelConfig& config, int chunks, std::vector<int> split);

// Parses "7,9,9,7"; returns an empty split for "auto". UserError for anything else.
std::vector<int> parse_split(const std::string& text);

// The layers of each chunk of one pipeline rank.
std::vector<StageLayers> stage_layers(const std::vector<int>& split, int stages, int rank);
// The shard of the model that a rank with these chunks holds.
ModelShard model_shard(const std::vector<StageLayers>& ranges, int tp, int tp_rank,
                       bool sequence_parallel);

}  // namespace kintsugi
