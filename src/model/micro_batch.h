#pragma once

#include <cstdint>
#include <vector>

#include "core/philox.h"
#include "tensor/tensor.h"

namespace kintsugi {

// The tokens of a forward of generation or scoring: any number of tokens of several sequences,
// whose earlier tokens are in the caches of the layers. First `singles` tokens that each continue
// another sequence, then chunks of consecutive tokens, then rows that belong to no sequence.
struct CachedTokens {
  struct Chunk {
    std::int64_t first = 0, tokens = 0;  // rows of the micro-batch
    std::int64_t slot = 0;
    std::int64_t position = 0;  // of the first token
  };
  bool deterministic = false;  // a token's results do not depend on the other tokens
  std::int64_t singles = 0;
  std::vector<Chunk> chunks = {};
  // Keys and values are in pages of page_tokens tokens (PagedAttentionOptions):
  std::int64_t page_tokens = 0;
  Tensor rows = {};  // (tokens), int32: where a token's key and value are stored; negative: nowhere
  Tensor pages = {};                           // (sequences, pages), int32
  Tensor single_tiles = {}, chunk_tiles = {};  // (tiles, 4), int32; empty: none
  std::int64_t chunk_tile_tokens = 1;
  std::int64_t max_keys = 0;
  // A recurrent state is in the slot of its sequence:
  Tensor slots = {};  // (singles), int32
};

// One micro-batch on the device: `sequences` rows of `length` tokens. With context parallelism,
// `length` is the number of local tokens per sequence.
struct MicroBatch {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  Tensor ids = {};      // (tokens), int32
  Tensor targets = {};  // (tokens), int32; negative: no loss for this token
  Tensor weights = {};  // (tokens), in accumulator precision: of the losses; empty: 1
  // Preference pairs (DPO): the local tokens of each sequence (sequences, 2), int32, and its
  // log-probability in the reference model (sequences), in accumulator precision. Preferred and
  // rejected ones take turns; unused ones have negative ranges. Empty: the loss is that of tokens.
  Tensor pair_ranges = {}, pair_reference = {};
  Tensor positions = {};  // (tokens), int32
  // (sequences, length), int32: the first token of the sequence that each token attends to. With
  // context parallelism around a ring, one such table per rank (first_visible_keys); with Ulysses,
  // of the whole sequences. Empty: attention crosses document boundaries.
  Tensor document_start = {};
  std::int64_t tokens() const { return sequences * length; }

  const CachedTokens* cached = nullptr;  // generation: sequences 1, length tokens

  // (sites, 3, 4), fp32: QuantizeOptions::statistics of the inputs, gradients and weights of the
  // fp8 matmuls; empty: not counted
  Tensor fp8_statistics = {};

  // (layers, experts), in accumulator precision: to count how often tokens choose each expert;
  // empty: not counted
  Tensor expert_counts = {};
  // (layers, experts), the same: how often the last step chose them, divided by the mean of a
  // layer; only with BalanceConfig::counts_last_step
  Tensor expert_loads = {};
  // (layers), the same: to count the choices that are dropped; only with BalanceConfig::capacity
  Tensor dropped_choices = {};

  // The backward computes the gradients of this times the sum of the losses; 0: none follows.
  double gradient_scale = 0;
  bool first = false, last = false;  // of the step
  bool training = false;             // a step, not an evaluation: adapters use their dropout
  bool scored_only = false;          // no backward follows the forward; only in training memory
  bool predicts = false;             // with scored_only: also find the most likely tokens
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
