#pragma once

#include <cstdint>
#include <vector>

#include "optim/update_rule.h"
#include "parallel/sharding.h"

namespace kintsugi {

// Neighbouring elements of a bucket that this rank owns and one rule updates. Padding belongs to
// the parameter before it.
struct StateRun {
  const UpdateRule* rule = nullptr;
  int bucket = 0;
  Sharding::Range range;      // in the set's numbering, without the padding at the end of a part
  std::int64_t elements = 0;  // in the state, with that padding
  std::int64_t at = 0;        // the first of them, among all that this rank owns
  std::int64_t slot_at = 0;   // and among those of the rule
  // What one update takes: elements with the same decay, or at Grain::Matrix one parameter.
  struct Part {
    Sharding::Range range;
    bool decays = false;
    Shape shape = {};  // Grain::Matrix only
  };
  std::vector<Part> parts = {};
};

// All that this rank owns, bucket after bucket. UserError if the layout cuts a parameter whose rule
// has Grain::Matrix.
std::vector<StateRun> plan_state(const Sharding& sharding, const UpdateRules& rules);

// The optimizer's state of what a rank owns: a master copy of the weights, where they need one, and
// the slots of each rule for its own parameters only.
class OptimizerState {
 public:
  OptimizerState(Arena& arena, const Sharding& sharding, const UpdateRules& rules, Side side);

  const std::vector<StateRun>& runs() const { return runs_; }
  std::int64_t elements() const { return runs_.back().at + runs_.back().elements; }
  bool has_master() const { return static_cast<bool>(master_); }
  // Of a run, without padding: (range.size()).
  Tensor master(const StateRun& run) const;  // the weights themselves when they need no copy
  Tensor slot(const StateRun& run, std::size_t slot) const;

  // In accumulator precision, for all elements; empty: the weights are their own.
  Tensor master() const { return master_; }
  struct RuleState {
    const UpdateRule* rule = nullptr;
    std::vector<Tensor> slots;  // for the elements of its runs
  };
  const std::vector<RuleState>& rules() const { return rules_; }
  const std::vector<Tensor>& slots_of(const UpdateRule* rule) const;
  void zero(Backend& backend) const;

 private:
  const Sharding* sharding_;
  std::vector<StateRun> runs_;
  Tensor master_;
  std::vector<RuleState> rules_;
};

}  // namespace kintsugi
