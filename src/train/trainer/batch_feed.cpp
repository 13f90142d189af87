#include "train/trainer/batch_feed.h"

#include <algorithm>

#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {

void BatchFeed::open() {
  const std::int64_t steps_left =
      std::max<std::int64_t>(run_.schedule.last_step() - run_.state.step, 0);
  loader_ = std::make_unique<BatchLoader>(run_.data->order(), run_.data->sample_options(),
                                          BatchLoader::Plan{.schedule = run_.batches,
                                                            .first_step = run_.state.step + 1,
                                                            .batches = steps_left,
                                                            .rank = run_.groups.coordinates.dp,
                                                            .ranks = run_.groups.grid.dp,
                                                            .depth = run_.config.data.prefetch,
                                                            .skipped = run_.state.skipped_samples});
}

void BatchFeed::close() {
  batch_ = nullptr;
  loader_.reset();
}

double BatchFeed::load(std::int64_t step, Trace* trace) {
  if (step > run_.schedule.last_step()) return 0;
  const HostSpan span(trace, "data wait", SpanKind::Data);
  try {
    batch_ = &loader_->next();
  } catch (const std::exception&) {
    return 0;
  }
  return run_.engine->targets_of(tokens());
}

TokenBatch BatchFeed::tokens() {
  if (batch_ == nullptr) batch_ = &loader_->next();  // rethrows an error that was deferred
  return {.ids = batch_->ids,
          .targets = batch_->targets,
          .positions = batch_->positions,
          .document_start = batch_->document_start,
          .weights = target_weights(batch_->targets),
          .sequences = reference_.pairs_of(*batch_)};
}

void BatchFeed::release() {
  loader_->release();
  batch_ = nullptr;
}

std::span<const float> BatchFeed::target_weights(std::span<const std::int32_t> targets) {
  const std::vector<float>& weights = run_.data->class_weights();
  if (weights.empty()) return {};
  target_weights_.clear();
  for (const std::int32_t target : targets)
    target_weights_.push_back(target < 0 ? 0.0F : weights[target]);
  return target_weights_;
}

// Throws on the first rank, which alone has the check, if it has found a file that changed.
void BatchFeed::refuse_other_data(std::int64_t step) const {
  if (!content_check_ || !content_check_->found_change()) return;
  try {
    content_check_->rethrow();
  } catch (const UserError& error) {
    user_error(
        "{}; steps {} to {} of this run have read it: go on from a checkpoint before them "
        "(checkpoints/latest), or start in another run.dir",
        error.what(), run_.before.steps + 1, step);
  }
}

void BatchFeed::close_content_check() {
  together(run_.host(), [&] { refuse_other_data(run_.state.step); });
  if (content_check_ && content_check_->unread_bytes() > 0)
    log_info("{} of the data were not compared yet: the next start of this run does it",
             format_bytes(static_cast<double>(content_check_->unread_bytes())));
  content_check_.reset();
}

}  // namespace kintsugi
