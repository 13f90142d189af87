#include "optim/optimizer_state.h"

#include <algorithm>

namespace kintsugi {
namespace {

void add_part(StateRange& segment, const Parameter& parameter, Sharding::Range range) {
  if (range.size() == 0) return;
  const bool decays = segment.rule->decays(parameter);
  if (!segment.parts.empty() && segment.parts.back().decays == decays) {
    segment.parts.back().range.end = range.end;
  } else {
    segment.parts.push_back({range, decays});
  }
}

// Adds the updates of elements `range` of a segment, which belong to one block.
void add_ranges(const Sharding& sharding, const OptimizerState& state, const StateRange& segment,
                const ElementRule& rule, Sharding::Range range, std::vector<UpdateRange>& ranges) {
  for (const StateRange::Part& part : segment.parts) {
    const std::int64_t begin = std::max(part.range.begin, range.begin),
                       count = std::min(part.range.end, range.end) - begin;
    if (count <= 0) continue;
    const std::int64_t from = begin - segment.range.begin;
    ranges.push_back(
        {.rule = &rule,
         .weight = sharding.weights_at(segment.bucket, {begin, begin + count}),
         .gradient = sharding.owned_gradients(segment.bucket)
                         .rows(begin - sharding.owned(segment.bucket).begin, count),
         .master = state.has_master(segment) ? state.master(segment).rows(from, count) : Tensor(),
         .ema = state.has_ema() ? state.ema(segment).rows(from, count) : Tensor(),
         .at = segment.at + from,
         .first_element = begin,
         .decays = part.decays});
    for (std::size_t slot = 0; slot < state.slots_of(segment.rule).size(); ++slot)
      ranges.back().slots.push_back(state.slot(segment, slot).rows(from, count));
  }
}

}  // namespace

std::vector<StateRange> plan_state(const Sharding& sharding, const UpdateRules& rules) {
  std::vector<StateRange> segments;
  const std::vector<Parameter>& parameters = sharding.set().parameters();
  // The last segment of this rule so far.
  const auto last_of = [&](const UpdateRule* rule) {
    const auto found =
        std::find_if(segments.rbegin(), segments.rend(),
                     [&](const StateRange& segment) { return segment.rule == rule; });
    return found == segments.rend() ? StateRange{} : *found;
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (!parameter.trained) continue;
    const UpdateRule& rule = rules(parameter);
    const bool is_last = i + 1 == parameters.size() || parameters[i + 1].bucket != parameter.bucket;
    const Sharding::Range owned = sharding.owned(parameter.bucket);
    const std::int64_t shard_end = owned.begin + sharding.shard_elements(parameter.bucket);
    const std::int64_t begin = std::max(parameter.offset, owned.begin),
                       end = is_last ? shard_end : std::min(parameters[i + 1].offset, shard_end);
    if (begin >= end) continue;
    const Sharding::Range range{std::min(begin, owned.end), std::min(end, owned.end)};
    if (segments.empty() || segments.back().bucket != parameter.bucket ||
        segments.back().rule != &rule) {
      const StateRange of_rule = last_of(&rule);
      segments.push_back(
          {.rule = &rule,
           .bucket = parameter.bucket,
           .range = {range.begin, range.begin},
           .at = segments.empty() ? 0 : segments.back().at + segments.back().elements,
           .slot_at = of_rule.slot_at + of_rule.elements});
    }
    StateRange& segment = segments.back();
    segment.range.end = range.end;
    segment.elements += end - begin;
    add_part(segment, parameter, range);
  }
  std::int64_t copied = 0;
  for (StateRange& segment : segments) {
    const bool has_copy = !sharding.is_unrounded(segment.bucket);
    segment.master_at = has_copy ? copied : -1;
    if (has_copy) copied += segment.elements;
  }
  return segments;
}

OptimizerState::OptimizerState(Arena& arena, const Sharding& sharding, const UpdateRules& rules,
                               Side side, const EmaOptions& ema)
    : sharding_(&sharding),
      has_master_(accumulator_of(sharding.store().dtype()) != sharding.store().dtype()),
      has_ema_(ema.on()),
      segments_(plan_state(sharding, rules)) {
  const DType precision = sharding.store().dtype(), wide = accumulator_of(precision);
  std::int64_t copied = 0;
  for (const StateRange& segment : segments_)
    if (has_master(segment)) copied += segment.elements;
  if (copied > 0)
    master_ = arena.allocate(Region::Optimizer, "master weights", wide, {copied}, side);
  if (has_ema_ && elements() > 0)
    ema_ = arena.allocate(Region::Optimizer, "averaged weights", wide, {elements()}, side);
  for (const UpdateRule* const rule : rules_of(sharding.set(), rules)) {
    std::int64_t count = 0;
    for (const StateRange& segment : segments_)
      if (segment.rule == rule) count += segment.elements;
    if (count == 0) continue;
    rules_.push_back({rule, {}});
    for (const StateSlot& slot : rule->slots(precision))
      rules_.back().slots.push_back(
          arena.allocate(Region::Optimizer, slot.label, slot.dtype, {count}, side));
  }
}

const std::vector<Tensor>& OptimizerState::slots_of(const UpdateRule* rule) const {
  return std::ranges::find_if(rules_, [&](const RuleState& state) { return state.rule == rule; })
      ->slots;
}

Tensor OptimizerState::master(const StateRange& segment) const {
  return has_master(segment) ? master_.rows(segment.master_at, segment.range.size())
                             : sharding_->weights_at(segment.bucket, segment.range);
}

Tensor OptimizerState::slot(const StateRange& segment, std::size_t slot) const {
  return slots_of(segment.rule)[slot].rows(segment.slot_at, segment.range.size());
}

void OptimizerState::zero(Backend& backend) const {
  if (master_) backend.fill(master_, 0.0);
  if (ema_) backend.fill(ema_, 0.0);
  for (const RuleState& state : rules_)
    for (const Tensor& slot : state.slots) backend.fill(slot, 0.0);
}

void UpdateRange::update(Backend& backend, const UpdateStep& step) const {
  rule->update(
      backend, weight, master ? master : weight, slots, gradient, step.scale,
      {.step = step.step, .lr = step.lr, .decays = decays, .first_element = first_element});
  if (step.ema_rate > 0)
    backend.moving_average(ema, master ? master : weight, step.ema_rate, step.scale);
}

std::vector<UpdateBlock> plan_updates(const Sharding& sharding, const OptimizerState& state,
                                      std::int64_t most) {
  std::vector<UpdateBlock> blocks;
  for (const StateRange& segment : state.segments()) {
    const auto* const rule = dynamic_cast<const ElementRule*>(segment.rule);
    if (rule == nullptr) continue;
    for (std::int64_t done = 0; done < segment.elements;) {
      if (blocks.empty() || blocks.back().rule != segment.rule || blocks.back().count == most ||
          blocks.back().first + blocks.back().count != segment.at + done)
        blocks.push_back({.rule = segment.rule,
                          .first = segment.at + done,
                          .slot_first = segment.slot_at + done});
      UpdateBlock& block = blocks.back();
      const std::int64_t count = std::min(segment.elements - done, most - block.count);
      const std::int64_t begin = segment.range.begin + done;
      add_ranges(sharding, state, segment, *rule, {begin, begin + count}, block.ranges);
      block.count += count;
      done += count;
    }
  }
  return blocks;
}

}  // namespace kintsugi
