#include "optim/optimizer_state.h"

#include <algorithm>

namespace kintsugi {
namespace {

void check_grain(const Sharding& sharding, const UpdateRule& rule, const Parameter& parameter) {
  if (rule.grain() == Grain::Element || sharding.keeps_whole(parameter)) return;
  user_error(
      "{} updates whole matrices, and this layout cuts {} among ranks: set layout.zero to 0 and "
      "layout.tp to 1, or choose another optimizer",
      rule.name(), parameter.name);
}

void add_part(StateRun& run, const Parameter& parameter, Sharding::Range range) {
  if (range.size() == 0) return;
  if (run.rule->grain() == Grain::Matrix) {
    if (range.begin != parameter.offset) return;  // another rank's, but for padding
    range.end = parameter.offset + parameter.shape.elements();
    run.parts.push_back({range, parameter.decay, parameter.shape});
  } else if (!run.parts.empty() && run.parts.back().decays == parameter.decay) {
    run.parts.back().range.end = range.end;
  } else {
    run.parts.push_back({range, parameter.decay});
  }
}

}  // namespace

std::vector<StateRun> plan_state(const Sharding& sharding, const UpdateRules& rules) {
  std::vector<StateRun> runs;
  const std::vector<Parameter>& parameters = sharding.set().parameters();
  // The run that ends where the next one of this rule starts.
  const auto last_of = [&](const UpdateRule* rule) {
    const auto found = std::find_if(runs.rbegin(), runs.rend(),
                                    [&](const StateRun& run) { return run.rule == rule; });
    return found == runs.rend() ? StateRun{} : *found;
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const UpdateRule& rule = rules(parameter);
    check_grain(sharding, rule, parameter);
    const bool is_last = i + 1 == parameters.size() || parameters[i + 1].bucket != parameter.bucket;
    const Sharding::Range mine = sharding.owned(parameter.bucket);
    const std::int64_t room = mine.begin + sharding.part_elements(parameter.bucket);
    const std::int64_t begin = std::max(parameter.offset, mine.begin),
                       end = is_last ? room : std::min(parameters[i + 1].offset, room);
    if (begin >= end) continue;
    const Sharding::Range range{std::min(begin, mine.end), std::min(end, mine.end)};
    if (runs.empty() || runs.back().bucket != parameter.bucket || runs.back().rule != &rule) {
      const StateRun of_rule = last_of(&rule);
      runs.push_back({.rule = &rule,
                      .bucket = parameter.bucket,
                      .range = {range.begin, range.begin},
                      .at = runs.empty() ? 0 : runs.back().at + runs.back().elements,
                      .slot_at = of_rule.slot_at + of_rule.elements});
    }
    StateRun& run = runs.back();
    run.range.end = range.end;
    run.elements += end - begin;
    add_part(run, parameter, range);
  }
  return runs;
}

OptimizerState::OptimizerState(Arena& arena, const Sharding& sharding, const UpdateRules& rules,
                               Side side)
    : sharding_(&sharding), runs_(plan_state(sharding, rules)) {
  const DType precision = sharding.store().dtype(), wide = accumulator_of(precision);
  if (wide != precision)
    master_ = arena.allocate(Region::Optimizer, "master weights", wide, {elements()}, side);
  for (const UpdateRule* const rule : rules_of(sharding.set(), rules)) {
    std::int64_t count = 0;
    for (const StateRun& run : runs_)
      if (run.rule == rule) count += run.elements;
    if (count == 0) continue;
    rules_.push_back({rule, {}});
    for (const StateSlot& slot : rule->slots(precision))
      rules_.back().slots.push_back(
          arena.allocate(Region::Optimizer, slot.label, slot.dtype, {count}, side));
  }
}

const std::vector<Tensor>& OptimizerState::slots_of(const UpdateRule* rule) const {
  return std::find_if(rules_.begin(), rules_.end(),
                      [&](const RuleState& state) { return state.rule == rule; })
      ->slots;
}

Tensor OptimizerState::master(const StateRun& run) const {
  return master_ ? master_.rows(run.at, run.range.size())
                 : sharding_->weights_at(run.bucket, run.range);
}

Tensor OptimizerState::slot(const StateRun& run, std::size_t slot) const {
  return slots_of(run.rule)[slot].rows(run.slot_at, run.range.size());
}

void OptimizerState::zero(Backend& backend) const {
  if (master_) backend.fill(master_, 0.0);
  for (const RuleState& state : rules_)
    for (const Tensor& slot : state.slots) backend.fill(slot, 0.0);
}

}  // namespace kintsugi
