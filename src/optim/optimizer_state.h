#pragma once

#include <cstdint>
#include <vector>

#include "optim/update_rule.h"
#include "parallel/sharding.h"

namespace kintsugi {

// A contiguous segment of a bucket that this rank owns and one rule updates. Padding belongs to the
// parameter before it.
struct StateSegment {
  const UpdateRule* rule = nullptr;
  int bucket = 0;
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
std::vector<StateSegment> plan_state(const Sharding& sharding, const UpdateRules& rules);

// The optimizer state of the elements that a rank owns: a master copy of the weights, if they need
// one, their moving average, if there is one, and the slots of each rule for the parameters of that
// rule.
class OptimizerState {
 public:
  OptimizerState(Arena& arena, const Sharding& sharding, const UpdateRules& rules, Side side,
                 const EmaOptions& ema = {});

  const std::vector<StateSegment>& segments() const { return segments_; }
  std::int64_t elements() const {
    return segments_.empty() ? 0 : segments_.back().at + segments_.back().elements;
  }
  // Whether the run has master weights: the same on all ranks.
  bool has_master() const { return has_master_; }
  // Whether those of a segment are a copy, and not its weights themselves.
  bool has_master(const StateSegment& segment) const {
    return has_master_ && segment.master_at >= 0;
  }
  // The state of a segment, without padding: (range.size()). Without a master copy, master()
  // returns the weights.
  Tensor master(const StateSegment& segment) const;
  Tensor slot(const StateSegment& segment, std::size_t slot) const;
  bool has_ema() const { return has_ema_; }
  Tensor ema(const StateSegment& segment) const {
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
  std::vector<StateSegment> segments_;
  Tensor master_, ema_;
  std::vector<RuleState> rules_;
};

}  // namespace kintsugi
