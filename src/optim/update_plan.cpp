#include "optim/update_plan.h"

#include <algorithm>

namespace kintsugi {
namespace {

// Adds the updates of elements `range` of a segment, which belong to one block.
void add_ranges(const Sharding& sharding, const OptimizerState& state, const StateSegment& segment,
                const ElementRule& rule, Sharding::Range range, std::vector<UpdateRange>& ranges) {
  for (const StateSegment::Part& part : segment.parts) {
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
  for (const StateSegment& segment : state.segments()) {
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
