#pragma once

#include <cstdint>

#include "core/philox.h"
#include "tensor/tensor.h"

namespace kintsugi {

// One micro-batch on the device: `sequences` rows of `length` tokens. With context parallelism,
// `length` is the number of local tokens per sequence.
struct MicroBatch {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  Tensor ids = {};        // (tokens), int32
  Tensor targets = {};    // (tokens), int32; negative: no loss for this token
  Tensor positions = {};  // (tokens), int32
  // (sequences, length), int32: the first token of the sequence that each token attends to. With
  // context parallelism, one such table per rank (first_visible_keys). Empty: attention crosses
  // document boundaries.
  Tensor document_start = {};
  std::int64_t tokens() const { return sequences * length; }

  bool first = false, last = false;  // of the step
  bool scored_only = false;          // no backward follows the forward; only in training memory
  // Matmuls overwrite the gradients of their matrices instead of accumulating, which saves clearing
  // and reading them.
  bool overwrites = false;
  // Forward and backward make the same calls as every other micro-batch of this size, and none of
  // them communicates or waits for a host copy: the device may record them (Backend::replay).
  bool repeatable = false;

  // Dropout is a function of the seed, the step and the global token index, so it is the same in
  // every layout.
  double dropout = 0.0;
  std::uint64_t dropout_seed = 0;  // changes every step
  std::int64_t first_token = 0;    // global index of this micro-batch's first token within the step
  Tensor token_rows = {};  // (tokens), int32: index relative to first_token; empty: consecutive
  std::uint64_t dropout_key(std::uint64_t site) const { return derive_key(dropout_seed, site); }
};

}  // namespace kintsugi
