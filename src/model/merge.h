#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/stored_model.h"
#include "tensor/dtype.h"

namespace kintsugi {

// Merges models of one family and the same shapes into a Hugging Face directory, and converts one.
// Arithmetic is in double, and every element is rounded once. Memory is a few blocks, whatever the
// size of the model.

struct MergeOptions {
  std::vector<double> weights = {};  // one per model, with sum 1; empty: plain average
  std::optional<double> slerp = {};  // spherical interpolation between two models, 0 to 1
  std::optional<DType> dtype = {};   // of the result; none: the type of the first model's tensor
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool overwrite = false;
  std::size_t block = BlockReader::kBlock;                                 // elements
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};  // elements
};

struct MergeResult {
  std::size_t tensors = 0, files = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;  // of all weight files
  std::size_t peak_buffer_bytes = 0;
  std::size_t non_finite = 0;         // elements that are infinite or NaN, as in a model
  std::string first_non_finite = {};  // the first tensor with such elements
};

// The directory appears when it is complete. UserError if the models do not match or the output
// exists; Failure if it cannot be written.
MergeResult merge_models(const std::vector<std::filesystem::path>& models,
                         const std::filesystem::path& output, const MergeOptions& options = {});

// The factors of a and b in their spherical interpolation at t:
//   sin((1 - t) θ) / sin θ and sin(t θ) / sin θ with cos θ = a·b / (|a| |b|),
// or 1 - t and t if |cos θ| > 0.9995 or a norm is zero.
struct SlerpFactors {
  double first, second;
};
SlerpFactors slerp_factors(double a_a, double a_b, double b_b, double t);

}  // namespace kintsugi
