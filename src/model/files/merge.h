#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "model/files/model_writer.h"

namespace kintsugi {

// Merges models of one family and the same shapes into a Hugging Face directory, and converts one.

struct MergeOptions {
  std::vector<double> weights = {};  // one per model, with sum 1; empty: plain average
  std::optional<double> slerp = {};  // spherical interpolation between two models, 0 to 1
  ModelOutput output = {};
};

// The directory appears when it is complete. UserError if the models do not match or the output
// exists; Failure if it cannot be written.
WrittenModel merge_models(const std::vector<std::filesystem::path>& models,
                          const std::filesystem::path& output, const MergeOptions& options = {});

// The factors of a and b in their spherical interpolation at t:
//   sin((1 - t) θ) / sin θ and sin(t θ) / sin θ with cos θ = a·b / (|a| |b|),
// or 1 - t and t if |cos θ| > 0.9995 or a norm is zero.
struct SlerpFactors {
  double first, second;
};
SlerpFactors slerp_factors(double a_a, double a_b, double b_b, double t);

// ---- upcycling

// Makes a mixture of experts from a model without: every expert is a copy of the MLP, and the
// routers are random. As the weights of the chosen experts add up to 1, the mixture computes what
// the model did.

struct UpcycleOptions {
  std::int64_t experts = 8, chosen = 2;
  std::uint64_t seed = 0;  // of the routers
  UnusedWeights unused = UnusedWeights::Refuse;
  ModelOutput output = {};
};

// Llama becomes Mixtral, Qwen3 becomes Qwen3-MoE. The directory appears when it is complete.
// UserError if the family has no mixture or the output exists; Failure if it cannot be written.
WrittenModel upcycle_model(const std::filesystem::path& path, const std::filesystem::path& output,
                           const UpcycleOptions& options = {});

}  // namespace kintsugi
