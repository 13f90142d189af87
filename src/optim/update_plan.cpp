#include "optim/update_plan.h"

#include <algorithm>

namespace kintsugi {
namespace {

// The updates of elements `range` of a run, which are in one piece.
void add_ranges(const Sharding& sharding, const OptimizerState& state, const StateRun& run,
                Sharding::Range range, std::vector<UpdateRange>& ranges) {
  for (const StateRun::Part& part : run.parts) {
    const std::int64_t begin = std::max(part.range.begin, range.begin),
                       count = std::min(part.range.end, range.end) - begin;
    if (count <= 0) continue;
    if (run.rule->grain() == Grain::Matrix && count != part.range.size())
      user_error(
          "{} updates whole matrices, and a piece of the offloaded state cuts one of {} elements: "
          "turn offload off, or choose another optimizer",
          run.rule->name(), part.range.size());
    const std::int64_t from = begin - run.range.begin;
    ranges.push_back({.rule = run.rule,
                      .weight = sharding.weights_at(run.bucket, {begin, begin + count}),
                      .gradient = sharding.owned_gradients(run.bucket)
                                      .rows(begin - sharding.owned(run.bucket).begin, count),
                      .master = state.has_master() ? state.master(run).rows(from, count) : Tensor(),
                      .at = run.at + from,
                      .first_element = begin,
                      .decays = part.decays,
                      .shape = part.shape});
    for (std::size_t slot = 0; slot < state.slots_of(run.rule).size(); ++slot)
      ranges.back().slots.push_back(state.slot(run, slot).rows(from, count));
  }
}

}  // namespace

void UpdateRange::update(Backend& backend, const UpdateStep& step) const {
  rule->update(backend, weight, master ? master : weight, slots, gradient, step.scale,
               {.step = step.step,
                .lr = step.lr,
                .decays = decays,
                .first_element = first_element,
                .shape = shape});
}

std::vector<UpdatePiece> plan_updates(const Sharding& sharding, const OptimizerState& state,
                                      std::int64_t most) {
  std::vector<UpdatePiece> pieces;
  for (const StateRun& run : state.runs())
    for (std::int64_t done = 0; done < run.elements;) {
      if (pieces.empty() || pieces.back().rule != run.rule || pieces.back().count == most)
        pieces.push_back(
            {.rule = run.rule, .first = run.at + done, .slot_first = run.slot_at + done});
      UpdatePiece& piece = pieces.back();
      const std::int64_t count = std::min(run.elements - done, most - piece.count);
      const std::int64_t begin = run.range.begin + done;
      add_ranges(sharding, state, run, {begin, begin + count}, piece.ranges);
      piece.count += count;
      done += count;
    }
  return pieces;
}

}  // namespace kintsugi
