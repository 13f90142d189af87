#pragma once

#include <cstdint>
#include <filesystem>

#include "model/files/model_writer.h"

namespace kintsugi {

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
