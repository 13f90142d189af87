#include "parallel/layer_split.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <tuple>

#include "core/error.h"
#include "core/units.h"
#include "model/metrics.h"

namespace kintsugi {
namespace {

// The head's time relative to a layer's, estimated from the FLOPs of their matmuls.
double head_in_layers(const ModelConfig& config) {
  ModelConfig one = config;
  one.layers = 1;
  const ModelSpec model = model_spec(one);
  return 2.0 * static_cast<double>(model.head.vocab_size * config.hidden_size) /
         forward_flops(model.layers.front(), model.hidden_size, 0).linear;
}

}  // namespace

std::vector<int> balanced_split(const ModelConfig& config, int chunks) {
  if (config.layers < chunks)
    user_error("{} layers cannot be split into {} pipeline chunks: use fewer stages or chunks",
               config.layers, chunks);
  const double head = head_in_layers(config);
  std::vector<int> split(static_cast<std::size_t>(chunks), 1);
  for (std::int64_t assigned = chunks; assigned < config.layers; ++assigned) {
    const auto order = [&](int chunk) {  // the smallest gets the next layer
      const bool first = chunk == 0, last = chunk == chunks - 1;
      const double time = split[static_cast<std::size_t>(chunk)] + 1 + (last ? head : 0.0);
      return std::tuple(time, first || last, chunk);
    };
    int best = 0;
    for (int chunk = 1; chunk < chunks; ++chunk)
      if (order(chunk) < order(best)) best = chunk;
    ++split[static_cast<std::size_t>(best)];
  }
  return split;
}

std::vector<int> checked_split(const ModelConfig& config, int chunks, std::vector<int> split) {
  if (split.empty()) return balanced_split(config, chunks);
  const int sum = std::accumulate(split.begin(), split.end(), 0);
  if (static_cast<int>(split.size()) != chunks || sum != config.layers ||
      *std::min_element(split.begin(), split.end()) < 1)
    user_error(
        "layout.split is {}: it must have {} numbers (pp × chunks) of at least 1 with the sum {} "
        "(layers), such as {}",
        fmt::join(split, ","), chunks, config.layers,
        fmt::join(balanced_split(config, chunks), ","));
  return split;
}

std::vector<int> parse_split(const std::string& text) {
  constexpr std::int64_t kMostLayers = 1'000'000;  // per chunk; sums of them fit an int
  std::vector<int> layers;
  if (text == "auto") return layers;
  std::istringstream fields(text);
  for (std::string field; std::getline(fields, field, ',');) {
    try {
      const std::int64_t count = parse_count(field);
      if (count < 1 || count > kMostLayers) user_error("{} layers", count);
      layers.push_back(static_cast<int>(count));
    } catch (const UserError&) {
      layers.clear();
      break;
    }
  }
  if (layers.empty())
    user_error("'{}' is not a split: auto, or the layers of each pipeline chunk, like 7,9,9,7",
               text);
  return layers;
}

std::vector<StageLayers> stage_layers(const std::vector<int>& split, int stages, int rank) {
  const int chunks = static_cast<int>(split.size());
  std::vector<StageLayers> ranges;
  for (int chunk = rank; chunk < chunks; chunk += stages) {
    const int first = std::accumulate(split.begin(), split.begin() + chunk, 0);
    ranges.push_back({.first_layer = first,
                      .last_layer = first + split[static_cast<std::size_t>(chunk)],
                      .embedding = chunk == 0,
                      .head = chunk == chunks - 1});
  }
  return ranges;
}

ModelShard model_shard(const std::vector<StageLayers>& ranges, int tp, int tp_rank,
                       bool sequence_parallel) {
  ModelShard shard{.tp = tp,
                   .tp_rank = tp_rank,
                   .sequence_parallel = sequence_parallel,
                   .embedding = ranges.front().embedding,
                   .head = ranges.back().head};
  for (const StageLayers& range : ranges)
    for (int layer = range.first_layer; layer < range.last_layer; ++layer)
      shard.layers.push_back(layer);
  return shard;
}

}  // namespace kintsugi
