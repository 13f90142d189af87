#pragma once

#include <cstdint>
#include <vector>

#include "optim/update_rule.h"
#include "parallel/sharding.h"

namespace kintsugi {

// A contiguous segment of a bucket that this rank owns and one rule updates. Padding belongs to the
// parameter before it.
struct StateRange {
  const UpdateRule* rule = nullptr;
  int bucket = 0;
  bool wide = false;          // Bucket::wide; then it has no rule
  Sharding::Range range;      // in the set's numbering, without the padding at the end of the shard
  std::int64_t elements = 0;  // in the state, with that padding
  std::int64_t at = 0;        // offset of the first element among all that this rank owns
  std::int64_t slot_at = 0;   // offset of the first element in the rule's slots
  std::int64_t master_at = 0;  // and in the master copy; -1: its weights are unrounded
  // Elements with the same decay.
  struct Part {
    Sharding::Range range;
    bool decays = false;
  };
  std::vector<Part> parts = {};
};

// The segments of all elements that this rank owns and trains, in bucket order.
std::vector<StateRange> plan_state(const Sharding& sharding, const UpdateRules& rules);

// The optimizer state of the elements that a rank owns: a master copy of the weights, if they need
// one, their moving average, if there is one, and the slots of each rule for the parameters of that
// rule.
class OptimizerState {
 public:
  OptimizerState(Arena& arena, const Sharding& sharding, const UpdateRules& rules, Side side,
                 const EmaOptions& ema = {});

  const std::vector<StateRange>& segments() const { return segments_; }
  std::int64_t elements() const {
    return segments_.empty() ? 0 : segments_.back().at + segments_.back().elements;
  }
  // Whether the run has master weights: the same on all ranks.
  bool has_master() const { return has_master_; }
  // Whether those of a segment are a copy, and not its weights themselves.
  bool has_master(const StateRange& segment) const { return has_master_ && segment.master_at >= 0; }
  // The state of a segment, without padding: (range.size()). Without a master copy, master()
  // returns the weights.
  Tensor master(const StateRange& segment) const;
  Tensor slot(const StateRange& segment, std::size_t slot) const;
  bool has_ema() const { return has_ema_; }
  Tensor ema(const StateRange& segment) const {
    return ema_.rows(segment.at, segment.range.size());
  }

  // The master copy of all elements that have one, in accumulator precision; may be empty.
  Tensor master() const { return master_; }
  Tensor ema() const { return ema_; }  // the same for their moving average
  struct RuleState {
    const UpdateRule* rule = nullptr;
    std::vector<Tensor> slots;  // for the elements of its segments
  };
  const std::vector<RuleState>& rules() const { return rules_; }
  const std::vector<Tensor>& slots_of(const UpdateRule* rule) const;
  void zero(Backend& backend) const;

 private:
  const Sharding* sharding_;
  bool has_master_, has_ema_;
  std::vector<StateRange> segments_;
  Tensor master_, ema_;
  std::vector<RuleState> rules_;
};

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
