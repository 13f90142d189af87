// Checkpoints of a run: when they are saved, in the background or not, and what a failed one means.
#include <fmt/format.h>

#include <algorithm>

#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"
#include "train/checkpoint/model_card.h"
#include "train/trainer.h"

namespace kintsugi {
namespace fs = std::filesystem;

struct Trainer::SaveResult {
  fs::path model;
  double duration_s = 0;  // until it was published
  bool background = false;
};

void Trainer::open_saves() {
  if (!config_.train.save || finished()) return;
  if (is_first() && !config_.train.checkpoint_every) {
    const std::optional<Duration>& given = config_.train.mtbf;
    save_interval_.emplace(given ? given->seconds : mtbf_of_nodes_s(nodes()), Clock::now());
    log_info(
        "checkpoints: mean time between failures {} ({}); the first one after {}",
        format_duration(save_interval_->mtbf_s()),
        given ? "train.mtbf" : fmt::format("{}, train.mtbf: auto", format_number(nodes(), "node")),
        format_duration(save_interval_->seconds()));
  }
  if (!config_.train.async_save) return;
  double missing = snapshot_plan_.fits() ? 0 : 1;
  try {
    if (missing == 0) saver_ = std::make_unique<BackgroundSave>(*engine_);
  } catch (const std::exception&) {
    missing = 1;  // another process has allocated the memory since
  }
  sum_over_ranks(std::span(&missing, 1));
  if (missing == 0) return;
  saver_.reset();
  if (is_first()) warn_of_waiting_saves();
}

void Trainer::warn_of_waiting_saves() const {
  log_warning(
      "training stops during saves: to save in the background (train.async_save), {} needs {} of "
      "host memory for a copy of its state, and {} is free",
      groups_->ranks() > 1 ? "each rank" : "the run",
      format_bytes(static_cast<double>(snapshot_plan_.bytes)),
      format_bytes(static_cast<double>(snapshot_plan_.available)));
}

bool Trainer::save_is_due() const {
  if (!config_.train.save) return false;
  return due(config_.train.checkpoint_every.value_or(0)) || save_due_ ||
         due(config_.train.keep_every) || stops_.decided() || finished();
}

std::vector<Tokenizer::File> Trainer::checkpoint_texts() const {
  if (!is_first()) return {};
  std::vector<Tokenizer::File> files = tokenizer_files_;
  const std::string layout = groups_->ranks() > 1 ? describe_layout() : "one rank";
  files.push_back(model_card(config_, *data_, state_, record_, layout));
  return files;
}

CheckpointOptions Trainer::checkpoint_options() const {
  std::string keep_always;
  if (due(config_.train.keep_every))
    keep_always = fmt::format("train.keep_every: {}", config_.train.keep_every);
  if (finished() && !config_.stages.empty()) keep_always = kEndOfStage;
  std::vector<Ancestor> ancestors = ancestors_;
  // After a rewind, the checkpoint of the same step is replaced.
  if (!ancestors.empty() && ancestors.back().name == checkpoint_name(state_.step))
    ancestors.pop_back();
  return {.files = checkpoint_texts(),
          // Do not delete healthy checkpoints until the run is healthy again.
          .keep = health_.healthy() ? config_.train.keep_checkpoints : 0,
          .keep_always = keep_always,
          .config = to_public_yaml(config_),
          .ancestors = ancestors};
}

void Trainer::save() {
  const auto begin = Clock::now();
  const EnergySpan energy(energy_, RunPhase::Checkpoint);
  const RunEvents::LongWork long_work(events());
  show_live_line("saving a checkpoint …");
  finish_save();
  if (is_first()) lock_->check_in_place();
  const bool last = stops_.decided() || finished();
  try {
    check_finite(*engine_, state_);
  } catch (const Diverged&) {
    end_diverged("the weights are no longer finite");
  }
  save_healthy_ = health_.healthy();
  save_step_ = state_.step;
  if (save_interval_) save_interval_->began(begin);
  const fs::path checkpoints = directory_ / "checkpoints";
  if (saver_ && !last) {
    saver_->begin(checkpoints, state_, checkpoint_options());
    stops_.wall_time().set_save_under_way(true);
    engine_->before_next_update([this] { saver_->before_update(); });
  } else {
    std::optional<Progress> saving;  // of the first rank, for all of them
    CheckpointOptions options = checkpoint_options();
    if (is_first())
      options.progress = noting_activity(saving.emplace("save checkpoint", 0, "bytes"));
    try {
      const fs::path model = write_checkpoint(checkpoints, *engine_, state_, options);
      saving.reset();
      save_times_.stall_s = seconds_since(begin);
      note_saved({model, seconds_since(begin)});
    } catch (const SharedFailure& error) {
      note_failed_save(error.failure(), last);
    }
  }
  save_times_.stall_s = seconds_since(begin);
  if (!last) save_times_.stalled_s += save_times_.stall_s;
  if (is_first()) log_->goodput().note_save(save_times_.stall_s);
  gather_energy();
  write_energy(false);
}

ProgressCall Trainer::noting_activity(Progress& progress) {
  return [this, shown = progress.callback()](std::int64_t done, std::int64_t all) {
    note_activity();
    shown(done, all);
  };
}

RunEvents* Trainer::events() { return is_first() && log_ ? &log_->events() : nullptr; }

double Trainer::save_ended() const { return saver_ && saver_->ended() ? 1 : 0; }

// Not for the last save, which is not in the background.
void Trainer::finish_save() {
  if (!saver_ || !saver_->under_way()) return;
  const RunEvents::LongWork long_work(events());
  try {
    stops_.wall_time().set_save_under_way(false);
    const BackgroundSave::Result result = saver_->finish();
    note_saved({result.model, result.seconds, true});
  } catch (const SharedFailure& error) {
    note_failed_save(error.failure(), false);
  }
}

void Trainer::finish_save_after_error() noexcept {
  try {
    finish_save();
  } catch (const std::exception& error) {
    if (is_first()) log_warning("{}", error.what());
  }
}

void Trainer::note_saved(const SaveResult& result) {
  failed_saves_ = 0;
  ++save_times_.saved;
  last_checkpoint_ = result.model.string();
  stops_.wall_time().note_save(result.duration_s, result.background);
  if (save_healthy_) {
    last_healthy_ = last_checkpoint_;
    started_elsewhere_ = false;
  }
  if (!is_first()) return;
  log_->goodput().note_saved(result.duration_s);
  ancestors_ = ancestors_after(result.model);
  log_info("saved {} in {}; training waited {}", last_checkpoint_,
           format_duration(result.duration_s), format_duration(save_times_.stall_s));
  log_->events().add("checkpoint", save_step_, "saved " + last_checkpoint_);
  if (save_interval_ && save_interval_->measured(save_times_.stall_s, result.duration_s))
    log_info("checkpoints every {}: a save costs {}, mean time between failures {}",
             format_duration(save_interval_->seconds()), format_duration(save_interval_->cost_s()),
             format_duration(save_interval_->mtbf_s()));
}

void Trainer::report_saves() const {
  if (save_times_.saved == 0) return;
  const double run_s = seconds_since(loop_begin_);
  log_info("checkpoints: {} saved; training waited {} for them ({:.2f} % of {}), without the last",
           save_times_.saved, format_duration(save_times_.stalled_s),
           100 * save_times_.stalled_s / run_s, format_duration(run_s));
}

void Trainer::note_failed_save(RankFailure failure, bool last) {
  ++failed_saves_;
  const std::int64_t most = config_.train.max_failed_saves;
  if (last) throw SharedFailure(std::move(failure));
  const bool last_follows = stops_.decided() || finished();  // it decides
  if (failed_saves_ >= most && !last_follows) {
    failure.text += fmt::format(" (the last {} failed, train.max_failed_saves)",
                                format_number(failed_saves_, "save"));
    throw SharedFailure(std::move(failure));
  }
  if (is_first())
    log_warning("{}; the run continues and saves again later ({} of {} failed saves in a row)",
                failure.text, failed_saves_, most);
}

}  // namespace kintsugi
