#include "model/model_layers.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "model/block.h"
#include "model/lora.h"

namespace kintsugi {
namespace {

// Which parts of each layer are trained, in order; empty: all.
std::vector<std::vector<std::pair<bool, std::int64_t>>> trained_parts(const ModelConfig& config) {
  if (config.freeze.empty() && !config.lora.on()) return {};
  std::vector<std::vector<std::pair<bool, std::int64_t>>> layers(
      static_cast<std::size_t>(config.layers));
  const ParameterSet set(config);
  for (const Bucket& bucket : set.buckets())
    if (bucket.role == Bucket::Role::Block)
      layers[static_cast<std::size_t>(bucket.layer)].emplace_back(bucket.trained,
                                                                  bucket.end - bucket.begin);
  return layers;
}

auto saved_tensors(const ModelSpec& model, int layer) {
  Declaration declared({});
  Block(model, layer).declare(declared);
  const auto key = [](const TensorSpec& x) {
    const std::int64_t bytes = x.bytes ? x.bytes({.length = kFp8Multiple}, DType::BF16, true) : 0;
    return std::tuple(x.label, x.per, x.width, x.most, x.wide, x.dropped_by, x.kept, x.temporary,
                      bytes);
  };
  std::vector<decltype(key(TensorSpec()))> keys;
  for (const TensorSpec& x : declared.saved()) keys.push_back(key(x));
  return keys;
}

// The number of a thing among those seen before it that are the same, or a new one.
template <class Same>
int number_among(std::vector<int>& seen, int thing, const Same& same) {
  const auto found =
      std::find_if(seen.begin(), seen.end(), [&](int other) { return same(other, thing); });
  const auto number = static_cast<int>(found - seen.begin());
  if (found == seen.end()) seen.push_back(thing);
  return number;
}

}  // namespace

ModelLayers::ModelLayers(const ModelConfig& config)
    : model(std::make_shared<const ModelSpec>(model_spec(config))),
      first_trained(first_trained_layer(config)) {
  std::vector<LayerSpec> unnamed = spec().layers;
  for (LayerSpec& layer : unnamed) layer.clear_names();
  const auto trained = trained_parts(config);
  const auto same = [&](int a, int b) {
    const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
    return (a < first_trained) == (b < first_trained) &&
           (trained.empty() || trained[i] == trained[j]) && unnamed[i] == unnamed[j];
  };
  for (int layer = 0; layer < static_cast<int>(unnamed.size()); ++layer)
    kinds.push_back(number_among(first, layer, same));

  std::vector<decltype(saved_tensors(spec(), 0))> tensors;
  for (const int layer : first) tensors.push_back(saved_tensors(spec(), layer));
  std::vector<int> seen;
  for (int kind = 0; kind < static_cast<int>(first.size()); ++kind)
    saved.push_back(number_among(seen, kind, [&](int a, int b) {
      return tensors[static_cast<std::size_t>(a)] == tensors[static_cast<std::size_t>(b)];
    }));
}

}  // namespace kintsugi
