#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/progress.h"
#include "model/files/stored_model.h"

namespace kintsugi {

// Differences between two stored models, and statistics of one. Both read every tensor in blocks.

struct TensorStatistics {
  double min = 0, max = 0, mean = 0, rms = 0;  // of the finite elements
  std::int64_t non_finite = 0;                 // infinite or NaN
};
TensorStatistics tensor_statistics(BlockReader& reader, const SafetensorsModel::Location& tensor);

// A tensor that both models have.
struct TensorComparison {
  std::string name;
  std::vector<std::int64_t> first_shape, second_shape;
  std::string first_dtype, second_dtype;  // as the files spell them
  // Of the values; only if the shapes are equal.
  std::int64_t elements = 0, differing = 0;
  double max_difference = 0;  // infinite if only one of two elements is finite
  double rms = 0;             // of the first model's tensor
  // Relative to the RMS; infinite if that is zero and the values differ.
  double relative() const;
  bool same_shape() const { return first_shape == second_shape; }
  bool same_dtype() const { return first_dtype == second_dtype; }
  bool equal() const { return same_shape() && same_dtype() && differing == 0; }
};

struct ConfigComparison {  // a key of config.json with different values
  std::string key;
  std::string first, second;  // as JSON; empty: the key is absent
};

struct ModelComparison {
  std::vector<std::string> only_first, only_second;  // tensors
  std::vector<TensorComparison> tensors;  // of both, those with the largest differences first
  std::vector<ConfigComparison> config;
  bool equal() const;
};
// `progress`: elements of the first model.
ModelComparison compare_models(const StoredModel& first, const StoredModel& second,
                               const ProgressCall& progress = {});

}  // namespace kintsugi
