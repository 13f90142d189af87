// Copies of the state in the memory of nodes (train.memory_copy_every): made between checkpoints,
// and read at a restart.
#include <algorithm>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"
#include "train/trainer.h"

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
void Trainer::make_memory_copies() {
  if (!config_.train.save || config_.train.memory_copy_every == 0) return;
  const std::string text =
      fmt::format("{}\n{}\n{}", to_yaml(config_), data_->fingerprint(), config_.stage);
  // A number in JSON has at most 25 characters. The rest is for what grows with each rewind.
  const auto numbers = static_cast<std::size_t>(2 * config_.optimizer.skip_step.window +
                                                config_.train.spikes.window);
  copies_ = std::make_unique<MemoryCopies>(
      *engine_,
      MemoryCopies::Options{.run = text_of(host(), 0, fs::weakly_canonical(directory_).string()),
                            .configuration = text_of(host(), 0, hex64(hash64(text))),
                            .node = node_name(),
                            .node_ranks = groups_->node_ranks,
                            .text_bytes = (std::size_t{1} << 18) + 32 * numbers});
}

// A stage continues from its own checkpoints only: copies of it are used once it has one. A
// `latest` that the user has moved back counts more than any copy.
bool Trainer::restore_from_memory(const Start& start) {
  if (!copies_ || start.other_run) return false;
  TrainerState saved;
  std::vector<std::string> ids;
  double unusable = 0;
  try {
    saved = saved_state(start.checkpoint);
    for (const Ancestor& one : ancestors_after(start.checkpoint))
      ids.push_back(origin_of_copy(one.id, saved));
    const CheckpointPaths at{start.checkpoint.parent_path(), start.checkpoint.filename().string()};
    if (begins_stage(start, saved) || (is_first() && !is_last_saved(at))) unusable = 1;
  } catch (const UserError&) {
    unusable = 1;  // load_checkpoint() reports it
  }
  sum_over_ranks(std::span(&unusable, 1));
  if (unusable > 0) return false;
  std::optional<TrainerState> state = copies_->restore(saved.step, ids);
  if (!state) return false;
  state->history = std::move(saved.history);
  state_ = std::move(*state);
  from_memory_ = true;
  unsaved_ = true;
  return true;
}

void Trainer::open_memory_copies() {
  if (!copies_ || finished()) return;
  try {
    copies_->open(state_.step);
  } catch (const SharedFailure& error) {
    remove_memory_copies();
    if (is_first())
      log_warning("no copies in memory are made (train.memory_copy_every): {}", error.what());
    return;
  }
  if (is_first())
    log_info("  {:<14}{:>12}  of host memory in {}, {} (train.memory_copy_every)", "memory copies",
             format_bytes(static_cast<double>(copies_->reserved_bytes())),
             copies_->directory().string(),
             copies_->has_partner() ? "for this rank and one of another node" : "for this rank");
}

void Trainer::remove_memory_copies() {
  if (copies_) copies_->remove();
  copies_.reset();
}

void Trainer::copy_to_memory() {
  if (!copies_ || !due(config_.train.memory_copy_every) || stops_.decided() || finished()) return;
  if (!health_.healthy() || last_checkpoint_.empty() || started_elsewhere_) return;
  const auto begin = Clock::now();
  try {
    copies_->save(state_, origin_of_copy(ancestors_.empty() ? "" : ancestors_.back().id, state_));
  } catch (const SharedFailure& error) {
    if (is_first())
      log_warning("no more copies in memory are made (train.memory_copy_every): {}", error.what());
    return remove_memory_copies();
  }
  if (is_first() && !std::exchange(copied_, true))
    log_info("step {:>6}  copied to memory in {}", state_.step,
             format_duration(seconds_since(begin)));
}

}  // namespace kintsugi
