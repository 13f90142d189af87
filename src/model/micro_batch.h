#pragma once

#include <cstdint>

#include "core/philox.h"
#include "tensor/tensor.h"

namespace kintsugi {

// What one forward pass is about: `sequences` rows of `length` tokens, on the device. Where
// sequences are cut among ranks, `length` is what this rank has of each.
struct MicroBatch {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  Tensor ids = {};        // (tokens), int32
  Tensor targets = {};    // (tokens), int32; negative: no loss there
  Tensor positions = {};  // (tokens), int32
  // (sequences, length), int32: the first token of its sequence that each one sees; one such table
  // per rank that has other tokens of the sequences. Empty: attention is not confined to documents.
  Tensor document_start = {};
  std::int64_t tokens() const { return sequences * length; }

  // Of the step.
  bool first = false, last = false;
  bool scored_only = false;  // no backward follows its forward
  // Products overwrite the gradients of their matrices instead of adding to them, which saves
  // clearing and reading those.
  bool overwrites = false;
  // Its pass is the same calls as every other of this size, and none of them meets another rank or
  // a copy under way: a device may record it (Backend::replay).
  bool repeatable = false;

  // Dropout draws from the seed, the step and the global token, so it is the same however the batch
  // is cut.
  double dropout = 0.0;
  std::uint64_t dropout_seed = 0;  // of the step
  std::int64_t first_token = 0;    // global index of this micro-batch's first token within the step
  Tensor token_rows = {};          // (tokens), int32: from there; empty: one after the other
  std::uint64_t dropout_key(std::uint64_t site) const { return derive_key(dropout_seed, site); }
};

}  // namespace kintsugi
