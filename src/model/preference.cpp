#include "model/preference.h"

namespace kintsugi {

PreferenceLoss::PreferenceLoss(Arena& arena, DType dtype, std::int64_t tokens, int context,
                               const PreferenceOptions& options)
    : options_(options) {
  const auto take = [&](std::int64_t elements) {
    return arena.allocate(Region::Workspace, "preference loss", dtype, {elements});
  };
  sums_ = take(most_sequences(tokens, context));
  weights_ = take(tokens);
}

Tensor PreferenceLoss::weigh(const LayerRun& run, Tensor losses, Tensor totals) const {
  const MicroBatch& batch = run.batch;
  const Tensor weights = weights_.rows(0, batch.tokens());
  run.backend().range_sums(sums_, losses, batch.pair_ranges);
  if (Communicator* group = run.context.context; group != nullptr)
    group->wait(group->all_reduce(sums_));
  run.backend().preference_loss(weights, totals, sums_, batch.pair_reference, batch.pair_ranges,
                                options_);
  return weights;
}

}  // namespace kintsugi
