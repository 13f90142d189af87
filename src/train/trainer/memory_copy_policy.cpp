#include "train/trainer/memory_copy_policy.h"

#include <fmt/format.h>

#include <utility>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace fs = std::filesystem;

namespace {

// Identifies what a copy was made after. The samples that rewinds left out belong to it: a copy
// from before a rewind does not continue a checkpoint from after it, nor the other way round.
std::string origin_of_copy(const std::string& checkpoint, const TrainerState& state) {
  std::string text = checkpoint;
  for (const SkippedSamples& one : state.skipped_samples)
    text += fmt::format(" {}+{}", one.at, one.count);
  return text;
}

}  // namespace

// Any change of the configuration makes older copies useless.
void MemoryCopyPolicy::make() {
  if (!run_.config.train.save || run_.config.train.memory_copy_every == 0) return;
  const std::string text =
      fmt::format("{}\n{}\n{}", to_yaml(run_.config), run_.data->fingerprint(), run_.config.stage);
  // A number in JSON has at most 25 characters. The rest is for what grows with each rewind.
  const auto numbers = static_cast<std::size_t>(2 * run_.config.optimizer.skip_step.window +
                                                run_.config.train.spikes.window);
  copies_ = std::make_unique<MemoryCopies>(
      *run_.engine,
      MemoryCopies::Options{
          .run = text_of(run_.host(), 0, fs::weakly_canonical(run_.directory).string()),
          .configuration = text_of(run_.host(), 0, hex64(hash64(text))),
          .node = node_name(),
          .node_ranks = run_.groups.node_ranks,
          .text_bytes = (std::size_t{1} << 18) + 32 * numbers});
}

// A stage continues from its own checkpoints only: copies of it are used once it has one. A
// `latest` that the user has moved back counts more than any copy.
bool MemoryCopyPolicy::restore(const RunStart& start) {
  if (!copies_ || start.other_run) return false;
  TrainerState saved;
  std::vector<std::string> ids;
  double unusable = 0;
  try {
    saved = saved_state(start.checkpoint);
    for (const Ancestor& one : ancestors_after(start.checkpoint))
      ids.push_back(origin_of_copy(one.id, saved));
    const CheckpointPaths at{start.checkpoint.parent_path(), start.checkpoint.filename().string()};
    if (run_.begins_stage(start, saved) || (run_.is_first() && !is_last_saved(at))) unusable = 1;
  } catch (const UserError&) {
    unusable = 1;  // load_checkpoint() reports it
  }
  run_.sum_over_ranks(std::span(&unusable, 1));
  if (unusable > 0) return false;
  std::optional<TrainerState> state = copies_->restore(saved.step, ids);
  if (!state) return false;
  state->history = std::move(saved.history);
  run_.state = std::move(*state);
  restored_ = true;
  run_.unsaved = true;
  return true;
}

void MemoryCopyPolicy::open() {
  if (!copies_ || run_.finished()) return;
  try {
    copies_->open(run_.state.step);
  } catch (const SharedFailure& error) {
    remove();
    if (run_.is_first())
      log_warning("no copies in memory are made (train.memory_copy_every): {}", error.what());
    return;
  }
  if (run_.is_first())
    log_info("  {:<14}{:>12}  of host memory in {}, {} (train.memory_copy_every)", "memory copies",
             format_bytes(static_cast<double>(copies_->reserved_bytes())),
             copies_->directory().string(),
             copies_->has_partner() ? "for this rank and one of another node" : "for this rank");
}

void MemoryCopyPolicy::remove() {
  if (copies_) copies_->remove();
  copies_.reset();
}

void MemoryCopyPolicy::copy() {
  if (!copies_ || !run_.due(run_.config.train.memory_copy_every) || run_.stops.decided() ||
      run_.finished())
    return;
  if (!guard_.health().healthy() || run_.checkpoints.last.empty() || run_.checkpoints.of_other_run)
    return;
  const auto begin = std::chrono::steady_clock::now();
  try {
    copies_->save(run_.state, origin_of_copy(run_.checkpoints.ancestors.empty()
                                                 ? ""
                                                 : run_.checkpoints.ancestors.back().id,
                                             run_.state));
  } catch (const SharedFailure& error) {
    if (run_.is_first())
      log_warning("no more copies in memory are made (train.memory_copy_every): {}", error.what());
    return remove();
  }
  if (run_.is_first() && !std::exchange(reported_, true))
    log_info("step {:>6}  copied to memory in {}", run_.state.step,
             format_duration(seconds_since(begin)));
}

}  // namespace kintsugi
