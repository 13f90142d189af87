#pragma once

#include <memory>
#include <vector>

#include "model/spec.h"

namespace kintsugi {

// The layers of a model by what they compute and train: those of one kind differ only in names.
struct ModelLayers {
  ModelLayers(const ModelConfig& config);  // implicit: a configuration says what its layers are

  const ModelSpec& spec() const { return *model; }

  std::shared_ptr<const ModelSpec> model;  // shared by copies: experts have thousands of names
  std::vector<int> kinds;                  // of each layer
  std::vector<int> first;                  // the first layer of each kind
  std::vector<int> saved;  // of each kind: equal numbers save the same tensors for the backward
  int first_trained;       // the layers before it have no backward; -1: nor has the embedding

  std::size_t kind(int layer) const {
    return static_cast<std::size_t>(kinds[static_cast<std::size_t>(layer)]);
  }
  bool save_same_tensors(int layer, int other) const {
    return saved[kind(layer)] == saved[kind(other)];
  }
};

}  // namespace kintsugi
