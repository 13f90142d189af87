// What a run does about skipped steps, spikes of the loss and divergence, and checks of its ranks.
#include <algorithm>
#include <cmath>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/log.h"
#include "train/replica_check.h"
#include "train/trainer.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr double kStragglerCost = 0.05;  // of a step; less is not reported

}  // namespace

void Trainer::note_skipped(const StepResult& result, const StepLimits& limits) {
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm))
    record_.skipped = "not finite";
  if (!result.outlier) return;
  record_.skipped = "outlier";
  if (is_first())
    log_info(
        "step {:>6}  skipped as an outlier: loss {:.4f} (limit {:.4f}), norm {:.3f} (limit {:.3f})",
        record_.step, result.loss, limits.loss, result.gradient_norm, limits.gradient_norm);
}

// After the step, before its loss is added to the history.
std::string Trainer::find_spike(double loss) const {
  if (!spikes_.is_spike(loss)) return "";
  return fmt::format(
      "the loss {:.4f} is {:.1f} robust deviations above {:.4f}, the median of the last {} steps "
      "(train.spikes)",
      loss, spikes_.deviations(loss), spikes_.median_loss(), spikes_.state().losses.size());
}

std::string Trainer::trouble() const {
  const SpikeAction action = config_.train.spikes.action;
  if (!divergence_.empty()) return divergence_;
  if (spike_.empty()) return "";
  if (is_first()) log_->events().add("spike", state_.step, spike_);
  if (action == SpikeAction::Warn && is_first()) log_warning("step {}: {}", state_.step, spike_);
  return action == SpikeAction::Rewind || action == SpikeAction::Stop ? spike_ : "";
}

// On rank 0. Of this stage and with the same batches, so that samples are counted alike.
std::string Trainer::rewind_target() const {
  const fs::path folder = directory_ / "checkpoints";
  for (auto one = ancestors_.rbegin(); one != ancestors_.rend(); ++one) {
    const CheckpointPaths at{folder, one->name};
    if (!fs::exists(at.model()) || !what_is_missing(at).empty()) continue;
    try {
      const TrainerState state = saved_state(at.model());
      if (state.skipped == 0 && state.stage == state_.stage && state.batches == state_.batches &&
          state.step <= state_.step - config_.train.spikes.rewind_steps)
        return at.model().string();
    } catch (const UserError& error) {
      log_warning("{}; the run does not go back to {}", error.what(), one->name);
    }
  }
  return "";
}

// The newest target that can be loaded, which is then loaded. A damaged one is set aside.
std::optional<Trainer::Rewound> Trainer::go_back(std::int64_t position) {
  for (;;) {
    std::string target;
    together(host(), [&] {
      if (is_first()) target = rewind_target();
    });
    target = text_of(host(), 0, target);
    if (target.empty()) return std::nullopt;
    try {
      return go_back_to(target, position);
    } catch (const SharedUserError& error) {
      if (error.failure().kind != FailureKind::DamagedFile) throw;
      confirm_damage(target, error.failure());
      set_target_aside(target, error.what());
    }
  }
}

void Trainer::set_target_aside(const fs::path& target, const std::string& damage) {
  together(host(), [&] {
    if (!is_first()) return;
    const std::string aside = set_aside({target.parent_path(), target.filename().string()});
    log_warning("{}: {} was renamed to {}, and the run goes back further", damage,
                target.filename().string(), aside);
  });
  if (last_healthy_ != target.string()) return;
  together(host(), [&] {
    if (is_first()) last_healthy_ = newest_healthy_checkpoint();
  });
  last_healthy_ = text_of(host(), 0, last_healthy_);
}

bool Trainer::rewind(const std::string& why) {
  const SpikeOptions& options = config_.train.spikes;
  if (options.action != SpikeAction::Rewind) return false;
  const std::int64_t spike = state_.step, number = spikes_.next_rewind(spike);
  if (number > options.max_rewinds) {
    if (is_first())
      log_warning("{} rewinds in a row did not help (train.spikes.max_rewinds)",
                  options.max_rewinds);
    return false;
  }
  const RunEvents::LongWork long_work(events());
  finish_save_after_error();  // it reads the state that the rewind replaces
  const std::int64_t position = data_position(state_.skipped_samples, state_.samples);
  const SpikeHistory::State history = spikes_.state();
  const std::optional<Rewound> rewound = go_back(position);
  if (!rewound) {
    if (is_first())
      log_warning("there is no healthy checkpoint {} or more steps before step {} to go back to",
                  options.rewind_steps, spike);
    return false;
  }
  spikes_.restore({state_.spikes.losses, history.rewinds, history.last_step});
  spikes_.note_rewind(spike);
  state_.spikes = spikes_.state();
  if (is_first()) log_->goodput().rewind(state_.step);
  read_first_batch();
  if (!is_first()) return true;
  log_warning(
      "step {}: {}; going back to {} and leaving out samples {} to {} of the data (rewind {} of at "
      "most {})",
      spike, why, rewound->checkpoint.string(), rewound->first, rewound->end - 1, number,
      options.max_rewinds);
  return true;
}

// Loads the checkpoint and leaves out its next samples up to `position`.
Trainer::Rewound Trainer::go_back_to(const fs::path& checkpoint, std::int64_t position) {
  batch_ = nullptr;
  loader_.reset();
  engine_->prepare();
  state_ = load_checkpoint(checkpoint, *engine_);
  if (copies_) copies_->give_up();
  unsaved_ = true;
  from_memory_ = false;
  engine_->sharding().weights_changed();  // gathered copies are out of date
  engine_->sharding().finish_weights();
  const std::int64_t from = data_position(state_.skipped_samples, state_.samples);
  const std::int64_t to =
      std::max(position, from + config_.train.spikes.skip_batches * config_.batch.global);
  state_.skipped_samples.push_back({.at = state_.samples, .count = to - from});
  together(host(), [&] { take_over({.checkpoint = checkpoint}); });
  before_ = {.steps = state_.step, .samples = state_.samples};
  batches_ = config_.batches_after(before_);
  step_seconds_ = 0;
  means_.clear();
  divergence_.clear();
  spike_.clear();
  evaluated_.clear();  // the steps are trained on other data
  record_.step = state_.step;
  record_.tokens = state_.tokens;
  open_loader();
  return {checkpoint, from, to};
}

void Trainer::end_diverged(const std::string& why) {
  finish_save_after_error();  // it may be the newest healthy one
  const bool by_outliers = health_.outliers() >= config_.train.max_skipped_steps;
  const std::string change =
      fmt::format("lower optimizer.lr, {}or check the data",
                  by_outliers ? "raise optimizer.skip_step.deviations " : "");
  const std::string advice =
      last_healthy_.empty()
          ? fmt::format("no checkpoint was saved while it was healthy: {}", change)
          : fmt::format("the newest healthy checkpoint is {}: {}, {}", last_healthy_, change,
                        last_healthy_ == last_checkpoint_ ? "and run again to continue from it"
                        : started_elsewhere_ ? "delete the checkpoints of this run and run again"
                                             : "point checkpoints/latest to it and run again");
  throw Diverged(fmt::format("the run diverged at step {}: {}; {}", state_.step, why, advice));
}

// The mean of the times in which each rank computed, since the last call.
void Trainer::find_straggler() {
  if (groups_->ranks() == 1 || !due(10 * config_.train.log_every)) return;
  const double own = compute_s_ / static_cast<double>(std::max<std::int64_t>(compute_steps_, 1));
  compute_s_ = 0;
  compute_steps_ = 0;
  std::vector<double> all(static_cast<std::size_t>(groups_->ranks()));
  double mine = own;
  host().wait(host().all_gather(Tensor(all.data(), DType::F64, {groups_->ranks()}),
                                Tensor(&mine, DType::F64, {1})));
  if (is_first()) log_->files().write_ranks(state_.step, all);
  Straggler slowest = slowest_rank(all);
  slowest.node = text_of(host(), slowest.rank, node_name());
  record_.straggler = slowest;
  const double slowest_s = all[static_cast<std::size_t>(slowest.rank)];
  // In very short steps the ratio is noise.
  const bool costs_time =
      slowest_s - slowest_s / slowest.ratio > kStragglerCost * means_.step_time_s();
  if (is_first() && slowest.ratio >= kStragglerRatio && costs_time)
    log_warning(
        "rank {} on node {} is slow: it computes for {:.3g} s per step, {:.2f} times the median of "
        "all ranks",
        slowest.rank, slowest.node, slowest_s, slowest.ratio);
}

void Trainer::check_replicas(bool saves) {
  const std::int64_t every = config_.train.verify_replicas_every;
  if (every == 0 || groups_->ranks() == 1 || !(due(every) || saves)) return;
  const std::string difference = differing_replicas(*engine_);
  if (difference.empty()) return;
  throw SharedFailure(fmt::format(
      "after step {} {}: nothing is saved from now on; run again to continue from {}, without "
      "these nodes if it happens again",
      state_.step, difference, last_checkpoint_.empty() ? "the start" : last_checkpoint_));
}

}  // namespace kintsugi
