#pragma once

#include <cstdint>
#include <vector>

#include "optim/optimizer_state.h"

namespace kintsugi {

// Arguments that all updates of one step share.
struct UpdateStep {
  std::int64_t step = 1;
  double lr = 0;
  Tensor scale;         // (1): gradients are multiplied by it
  double ema_rate = 0;  // EmaOptions::rate
};

// A contiguous range of elements that one call of ElementRule::update updates.
struct UpdateRange {
  const ElementRule* rule = nullptr;
  Tensor weight;                   // on the device
  Tensor gradient;                 // on the device, unless gradients are offloaded
  Tensor master = {};              // empty: no master copy
  Tensor ema = {};                 // empty: no moving average
  std::vector<Tensor> slots = {};  // in the order of the rule's slots()
  std::int64_t at = 0;             // offset among all elements that this rank owns
  std::int64_t first_element = 0;  // in the set's numbering
  bool decays = false;
  std::int64_t size() const { return weight.elements(); }
  void update(Backend& backend, const UpdateStep& step) const;
};

// Elements [first, first + count) of those that this rank owns, all with the same rule, and their
// updates.
struct UpdateBlock {
  const UpdateRule* rule = nullptr;
  std::int64_t first = 0, count = 0;
  std::int64_t slot_first = 0;  // in the rule's slots
  std::vector<UpdateRange> ranges = {};
};

// Divides all elements that this rank updates by an ElementRule, including padding, into blocks of
// at most `most` elements.
std::vector<UpdateBlock> plan_updates(const Sharding& sharding, const OptimizerState& state,
                                      std::int64_t most);

}  // namespace kintsugi
