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

// The head's time in layers: both are matmuls with their matrices.
double head_in_layers(const ModelConfig& config) {
  ModelConfig one = config;
  one.layers = 1;
  const ModelSpec model = model_spec(one);
  return 2.0 * static_cast<double>(config.vocab_size * config.hidden_size) /
         forward_flops(model.layers.front(), model.hidden_size, 0).linear;
}

}  // namespace

std::vector<int> balanced_split(const ModelConfig& config, int parts) {
  if (config.layers < parts)
    user_error("{} layers cannot be split in {} parts: use fewer stages or chunks", config.layers,
               parts);
  const double head = head_in_layers(config);
  std::vector<int> split(static_cast<std::size_t>(parts), 1);
  for (std::int64_t given = parts; given < config.layers; ++given) {
    const auto order = [&](int part) {  // the least wins
      const bool first = part == 0, last = part == parts - 1;
      const double time = split[static_cast<std::size_t>(part)] + 1 + (last ? head : 0.0);
      return std::tuple(time, first || last, part);
    };
    int best = 0;
    for (int part = 1; part < parts; ++part)
      if (order(part) < order(best)) best = part;
    ++split[static_cast<std::size_t>(best)];
  }
  return split;
}

std::vector<int> checked_split(const ModelConfig& config, int parts, std::vector<int> split) {
  if (split.empty()) return balanced_split(config, parts);
  const int sum = std::accumulate(split.begin(), split.end(), 0);
  if (static_cast<int>(split.size()) != parts || sum != config.layers ||
      *std::min_element(split.begin(), split.end()) < 1)
    user_error(
        "layout.split is {}: it must have {} numbers (pp × chunks) of at least 1 with the sum {} "
        "(layers), such as {}",
        fmt::join(split, ","), parts, config.layers, fmt::join(balanced_split(config, parts), ","));
  return split;
}

std::vector<int> parse_split(const std::string& text) {
  constexpr std::int64_t kMostLayers = 1'000'000;  // of a part; sums of them fit an int
  std::vector<int> layers;
  if (text == "auto") return layers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    try {
      const std::int64_t count = parse_count(part);
      if (count < 1 || count > kMostLayers) user_error("{} layers", count);
      layers.push_back(static_cast<int>(count));
    } catch (const UserError&) {
      layers.clear();
      break;
    }
  }
  if (layers.empty())
    user_error(
        "'{}' is not a split: auto, or the layers of each part of the pipeline, like 7,9,9,7",
        text);
  return layers;
}

std::vector<StagePart> stage_parts(const std::vector<int>& split, int stages, int rank) {
  const int parts = static_cast<int>(split.size());
  std::vector<StagePart> mine;
  for (int part = rank; part < parts; part += stages) {
    const int first = std::accumulate(split.begin(), split.begin() + part, 0);
    mine.push_back({.first_layer = first,
                    .last_layer = first + split[static_cast<std::size_t>(part)],
                    .embedding = part == 0,
                    .head = part == parts - 1});
  }
  return mine;
}

ModelSlice slice_of(const std::vector<StagePart>& parts, int tp, int tp_rank,
                    bool sequence_parallel) {
  ModelSlice slice{.tp = tp,
                   .tp_rank = tp_rank,
                   .sequence_parallel = sequence_parallel,
                   .embedding = parts.front().embedding,
                   .head = parts.back().head};
  for (const StagePart& part : parts)
    for (int layer = part.first_layer; layer < part.last_layer; ++layer)
      slice.layers.push_back(layer);
  return slice;
}

}  // namespace kintsugi
