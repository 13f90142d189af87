// Copies of the state in the memory of nodes (train.memory_copy_every): made between checkpoints,
// and read at a restart.
#include <algorithm>

#include "comm/exchange.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"
#include "train/trainer.h"

namespace kintsugi {
namespace fs = std::filesystem;

// Any change of the configuration makes older copies useless.
void Trainer::make_memory_copies() {
  if (!config_.train.save || config_.train.memory_copy_every == 0) return;
  const std::string text =
      fmt::format("{}\n{}\n{}", to_yaml(config_), data_->fingerprint(), config_.stage);
  const auto window = static_cast<std::size_t>(config_.optimizer.skip_step.window);
  copies_ = std::make_unique<MemoryCopies>(
      *engine_,
      MemoryCopies::Options{.run = text_of(host(), 0, fs::weakly_canonical(directory_).string()),
                            .configuration = text_of(host(), 0, hex64(hash64(text))),
                            .node = MemoryCopies::this_node(),
                            .node_ranks = groups_->node_ranks,
                            .text_bytes = (std::size_t{1} << 18) + 64 * window});
}

// A stage continues from its own checkpoints only: copies of it are used once it has one.
bool Trainer::restore_from_memory(const Start& start) {
  if (!copies_ || start.other_run) return false;
  TrainerState saved;
  std::vector<std::string> ids;
  double unusable = 0;
  try {
    saved = saved_state(start.checkpoint);
    for (const Ancestor& one : ancestors_after(start.checkpoint)) ids.push_back(one.id);
    if (begins_stage(start, saved)) unusable = 1;
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
  return true;
}

void Trainer::open_memory_copies() {
  if (!copies_ || finished()) return;
  try {
    copies_->open(state_.step);
  } catch (const SharedFailure& error) {
    copies_->remove();
    copies_.reset();
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

void Trainer::copy_to_memory() {
  if (!copies_ || !due(config_.train.memory_copy_every) || stops_.decided() || finished()) return;
  if (!health_.healthy() || last_checkpoint_.empty() || started_elsewhere_) return;
  const auto begin = Clock::now();
  copies_->save(state_, ancestors_.empty() ? "" : ancestors_.back().id);
  if (is_first() && !std::exchange(copied_, true))
    log_info("step {:>6}  copied to memory in {}", state_.step,
             format_duration(seconds_since(begin)));
}

}  // namespace kintsugi
