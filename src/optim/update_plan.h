#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "parallel/sharding.h"

namespace kintsugi {

// The optimizer's state of what a rank owns, bucket after bucket.
struct OptimizerState {
  Tensor master;            // accumulator precision; empty: the weights are their own
  Tensor moment1, moment2;  // accumulator precision or bf16
};

// Neighbouring elements that one update takes together.
struct UpdateRange {
  Tensor weight;                   // on the device
  Tensor gradient;                 // likewise, unless gradients are offloaded
  std::int64_t at = 0;             // in the state
  std::int64_t first_element = 0;  // in the set's numbering
  bool decays = false;
  std::int64_t size() const { return weight.elements(); }
};

// Part [first, first + count) of the state, with the updates it holds.
struct UpdatePiece {
  std::int64_t first = 0, count = 0;
  std::vector<UpdateRange> ranges;
};

// Everything this rank updates, in pieces of at most `most` elements of the state; `offsets` says
// where in it each bucket is. All of it, including padding, is in some piece.
std::vector<UpdatePiece> plan_updates(const Sharding& sharding,
                                      const std::vector<std::int64_t>& offsets,
                                      std::int64_t state_elements, std::int64_t most);

// What all updates of one step have in common.
struct UpdateStep {
  AdamWOptions options;     // but for the decay and the place
  double weight_decay = 0;  // of the ranges that decay
  Tensor scale;             // (1), on the device: of the gradients
  AdamWOptions of(const UpdateRange& range) const {
    AdamWOptions here = options;
    here.weight_decay = range.decays ? weight_decay : 0.0;
    here.first_element = range.first_element;
    return here;
  }
};

}  // namespace kintsugi
