#pragma once

#include <cstdint>
#include <vector>

#include "optim/optimizer_state.h"

namespace kintsugi {

// What all updates of one step have in common.
struct UpdateStep {
  std::int64_t step = 1;
  double lr = 0;
  Tensor scale;  // (1): of the gradients
};

// Neighbouring elements that one update takes together.
struct UpdateRange {
  const UpdateRule* rule = nullptr;
  Tensor weight;                   // on the device
  Tensor gradient;                 // likewise, unless gradients are offloaded
  Tensor master = {};              // empty: the weight is its own
  std::vector<Tensor> slots = {};  // of the rule
  std::int64_t at = 0;             // among all that this rank owns
  std::int64_t first_element = 0;  // in the set's numbering
  bool decays = false;
  Shape shape = {};  // Grain::Matrix only
  std::int64_t size() const { return weight.elements(); }
  void update(Backend& backend, const UpdateStep& step) const;
};

// Elements [first, first + count) of what this rank owns, which have one rule, and their updates.
struct UpdatePiece {
  const UpdateRule* rule = nullptr;
  std::int64_t first = 0, count = 0;
  std::int64_t slot_first = 0;  // in the rule's slots
  std::vector<UpdateRange> ranges = {};
};

// Everything this rank updates, in pieces of at most `most` elements. All of the state, including
// padding, is in some piece.
std::vector<UpdatePiece> plan_updates(const Sharding& sharding, const OptimizerState& state,
                                      std::int64_t most);

}  // namespace kintsugi
