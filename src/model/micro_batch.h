#pragma once

#include <cstdint>

#include "core/philox.h"
#include "tensor/tensor.h"

namespace kintsugi {

// What one forward pass is about: `sequences` rows of `length` tokens, on the device.
struct MicroBatch {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  Tensor ids = {};        // (tokens), int32
  Tensor targets = {};    // (tokens), int32; negative: no loss there
  Tensor positions = {};  // (tokens), int32
  Tensor document_start =
      {};  // (sequences, length), int32; empty: attention is not confined to documents
  std::int64_t tokens() const { return sequences * length; }

  // The first of its step: products overwrite the gradients of their matrices instead of adding to
  // them, which saves clearing and reading those.
  bool first = false;

  // Dropout draws from the seed, the step and the global token, so it is the same however the batch
  // is cut.
  double dropout = 0.0;
  std::uint64_t dropout_seed = 0;  // of the step
  std::int64_t first_token = 0;    // global index of this micro-batch's first token within the step
  std::uint64_t dropout_key(std::uint64_t site) const { return derive_key(dropout_seed, site); }
};

}  // namespace kintsugi
