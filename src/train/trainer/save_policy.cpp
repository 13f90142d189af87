#include "train/trainer/save_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"
#include "train/checkpoint/model_card.h"
#include "train/checkpoint/tokenizer_files.h"
#include "train/trainer/progress_report.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr double kDay = 24 * 3600;
constexpr double kInterruptions = 419, kDays = 54, kNodes = 16384 / 8;
constexpr double kReportedChange = 0.1;

}  // namespace

double young_daly_s(double cost_s, double mtbf_s) { return std::sqrt(2 * cost_s * mtbf_s); }

double mtbf_of_nodes_s(double nodes) {
  return kDays * kDay * kNodes / kInterruptions / std::max(nodes, 1.0);
}

SaveInterval::SaveInterval(double mtbf_s, Clock::time_point start)
    : mtbf_s_(mtbf_s), seconds_(young_daly_s(cost_s_, mtbf_s)), last_(start) {}

bool SaveInterval::due(Clock::time_point now) const {
  return std::chrono::duration<double>(now - last_).count() >= seconds_;
}

bool SaveInterval::measured(double cost_s, double duration_s) {
  cost_s_ = cost_s;
  seconds_ = std::max(young_daly_s(cost_s, mtbf_s_), duration_s);
  if (std::abs(seconds_ - reported_s_) <= kReportedChange * reported_s_) return false;
  reported_s_ = seconds_;
  return true;
}

SavePolicy::SavePolicy(RunContext& run, const StepGuard& guard, EnergyAccount& energy)
    : run_(run),
      guard_(guard),
      energy_(energy),
      snapshot_plan_(plan_snapshot(run.backend, run.config, run.groups)) {
  if (run_.is_first())
    tokenizer_files_ =
        tokenizer_files(run_.data->tokenizer(), run_.config.model, run_.data->chat_format());
}

void SavePolicy::open() {
  if (!run_.config.train.save || run_.finished()) return;
  if (run_.is_first() && !run_.config.train.checkpoint_every) {
    const std::optional<Duration>& given = run_.config.train.mtbf;
    interval_.emplace(given ? given->seconds : mtbf_of_nodes_s(run_.nodes()),
                      SaveInterval::Clock::now());
    log_info("checkpoints: mean time between failures {} ({}); the first one after {}",
             format_duration(interval_->mtbf_s()),
             given ? "train.mtbf"
                   : fmt::format("{}, train.mtbf: auto", format_number(run_.nodes(), "node")),
             format_duration(interval_->seconds()));
  }
  if (!run_.config.train.async_save) return;
  double missing = snapshot_plan_.fits() ? 0 : 1;
  try {
    if (missing == 0) saver_ = std::make_unique<BackgroundSave>(*run_.engine);
  } catch (const std::exception&) {
    missing = 1;  // another process has allocated the memory since
  }
  run_.sum_over_ranks(std::span(&missing, 1));
  if (missing == 0) return;
  saver_.reset();
  if (run_.is_first()) warn_of_waiting_saves();
}

void SavePolicy::report_memory() const {
  if (!run_.config.train.save || !run_.config.train.async_save) return;
  log_info("  {:<14}{:>12}  of host memory, to save in the background (train.async_save){}",
           "snapshot", format_bytes(static_cast<double>(snapshot_plan_.bytes)),
           snapshot_plan_.fits()
               ? ""
               : fmt::format("; {} is free, so training stops during saves",
                             format_bytes(static_cast<double>(snapshot_plan_.available))));
}

void SavePolicy::warn_if_waiting() const {
  const TrainConfig& train = run_.config.train;
  if (train.save && train.async_save && !run_.finished() && !snapshot_plan_.fits())
    warn_of_waiting_saves();
}

void SavePolicy::warn_of_waiting_saves() const {
  log_warning(
      "training stops during saves: to save in the background (train.async_save), {} needs {} of "
      "host memory for a copy of its state, and {} is free",
      run_.groups.ranks() > 1 ? "each rank" : "the run",
      format_bytes(static_cast<double>(snapshot_plan_.bytes)),
      format_bytes(static_cast<double>(snapshot_plan_.available)));
}

double SavePolicy::asks_now() const {
  return interval_ && interval_->due(SaveInterval::Clock::now()) ? 1 : 0;
}

bool SavePolicy::is_due() const {
  if (!run_.config.train.save) return false;
  return run_.due(run_.config.train.checkpoint_every.value_or(0)) || asked_ ||
         run_.due(run_.config.train.keep_every) || run_.stops.decided() || run_.finished();
}

std::vector<Tokenizer::File> SavePolicy::texts() const {
  if (!run_.is_first()) return {};
  std::vector<Tokenizer::File> files = tokenizer_files_;
  const std::string layout =
      run_.groups.ranks() > 1 ? describe_layout(run_.config, run_.groups.grid) : "one rank";
  files.push_back(model_card(run_.config, *run_.data, run_.state, run_.record, layout));
  return files;
}

CheckpointOptions SavePolicy::checkpoint_options() const {
  std::string keep_always;
  if (run_.due(run_.config.train.keep_every))
    keep_always = fmt::format("train.keep_every: {}", run_.config.train.keep_every);
  if (run_.finished() && !run_.config.stages.empty()) keep_always = kEndOfStage;
  std::vector<Ancestor> ancestors = run_.checkpoints.ancestors;
  // After a rewind, the checkpoint of the same step is replaced.
  if (!ancestors.empty() && ancestors.back().name == checkpoint_name(run_.state.step))
    ancestors.pop_back();
  return {.files = texts(),
          // Do not delete healthy checkpoints until the run is healthy again.
          .keep = guard_.health().healthy() ? run_.config.train.keep_checkpoints : 0,
          .keep_always = keep_always,
          .config = to_public_yaml(run_.config),
          .ancestors = ancestors};
}

void SavePolicy::save() {
  const auto begin = SaveInterval::Clock::now();
  const EnergySpan energy(run_.energy, RunPhase::Checkpoint);
  const RunEvents::LongWork long_work(run_.events());
  show_live_line("saving a checkpoint …");
  finish();
  if (run_.is_first()) run_.lock->check_in_place();
  const bool last = is_last();
  try {
    check_finite(*run_.engine, run_.state);
  } catch (const Diverged&) {
    end_diverged("the weights are no longer finite");
  }
  healthy_ = guard_.health().healthy();
  step_ = run_.state.step;
  if (interval_) interval_->began(begin);
  const fs::path checkpoints = run_.directory / "checkpoints";
  if (saver_ && !last) {
    saver_->begin(checkpoints, run_.state, checkpoint_options());
    run_.stops.wall_time().set_save_under_way(true);
    run_.engine->before_next_update([this] { saver_->before_update(); });
  } else {
    std::optional<Progress> saving;  // of the first rank, for all of them
    CheckpointOptions options = checkpoint_options();
    if (run_.is_first())
      options.progress = run_.noting_activity(saving.emplace("save checkpoint", 0, "bytes"));
    try {
      const fs::path model = write_checkpoint(checkpoints, *run_.engine, run_.state, options);
      saving.reset();
      stall_s_ = seconds_since(begin);
      note_saved({model, seconds_since(begin)});
    } catch (const SharedFailure& error) {
      note_failed(error.failure(), last);
    }
  }
  stall_s_ = seconds_since(begin);
  if (!last) stalled_s_ += stall_s_;
  if (run_.is_first()) run_.log->goodput().note_save(stall_s_);
  energy_.gather();
  energy_.write(false);
}

// Not for the last save, which is not in the background.
void SavePolicy::finish() {
  if (!saver_ || !saver_->under_way()) return;
  const RunEvents::LongWork long_work(run_.events());
  try {
    run_.stops.wall_time().set_save_under_way(false);
    const BackgroundSave::Result result = saver_->finish();
    note_saved({result.model, result.seconds, true});
  } catch (const SharedFailure& error) {
    note_failed(error.failure(), false);
  }
}

void SavePolicy::finish_after_error() noexcept {
  try {
    finish();
  } catch (const std::exception& error) {
    if (run_.is_first()) log_warning("{}", error.what());
  }
}

void SavePolicy::note_saved(const Saved& result) {
  failed_ = 0;
  ++saved_;
  run_.checkpoints.last = result.model.string();
  run_.stops.wall_time().note_save(result.duration_s, result.background);
  if (healthy_) {
    run_.checkpoints.healthy = run_.checkpoints.last;
    run_.checkpoints.of_other_run = false;
  }
  if (!run_.is_first()) return;
  run_.log->goodput().note_saved(result.duration_s);
  run_.checkpoints.ancestors = ancestors_after(result.model);
  log_info("saved {} in {}; training waited {}", run_.checkpoints.last,
           format_duration(result.duration_s), format_duration(stall_s_));
  run_.log->events().add("checkpoint", step_, "saved " + run_.checkpoints.last);
  if (interval_ && interval_->measured(stall_s_, result.duration_s))
    log_info("checkpoints every {}: a save costs {}, mean time between failures {}",
             format_duration(interval_->seconds()), format_duration(interval_->cost_s()),
             format_duration(interval_->mtbf_s()));
}

void SavePolicy::report(double run_s) const {
  if (saved_ == 0) return;
  log_info("checkpoints: {} saved; training waited {} for them ({:.2f} % of {}), without the last",
           saved_, format_duration(stalled_s_), 100 * stalled_s_ / run_s, format_duration(run_s));
}

void SavePolicy::note_failed(RankFailure failure, bool last) {
  ++failed_;
  const std::int64_t most = run_.config.train.max_failed_saves;
  if (last) throw SharedFailure(std::move(failure));
  const bool last_follows = is_last();  // it decides
  if (failed_ >= most && !last_follows) {
    failure.text += fmt::format(" (the last {} failed, train.max_failed_saves)",
                                format_number(failed_, "save"));
    throw SharedFailure(std::move(failure));
  }
  if (run_.is_first())
    log_warning("{}; the run continues and saves again later ({} of {} failed saves in a row)",
                failure.text, failed_, most);
}

void SavePolicy::end_diverged(const std::string& why) {
  finish_after_error();  // it may be the newest healthy one
  const bool by_outliers = guard_.health().outliers() >= run_.config.train.max_skipped_steps;
  const std::string change =
      fmt::format("lower optimizer.lr, {}or check the data",
                  by_outliers ? "raise optimizer.skip_step.deviations " : "");
  const std::string advice =
      run_.checkpoints.healthy.empty()
          ? fmt::format("no checkpoint was saved while it was healthy: {}", change)
          : fmt::format(
                "the newest healthy checkpoint is {}: {}, {}", run_.checkpoints.healthy, change,
                run_.checkpoints.healthy == run_.checkpoints.last
                    ? "and run again to continue from it"
                : run_.checkpoints.of_other_run ? "delete the checkpoints of this run and run again"
                                                : "point checkpoints/latest to it and run again");
  throw Diverged(fmt::format("the run diverged at step {}: {}; {}", run_.state.step, why, advice));
}

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
  const ModelConfig& model = run_.config.model;
  const std::int64_t counts =
      model.balance.counts_last_step() ? model.layers * model.experts->count : 0;
  const auto numbers = static_cast<std::size_t>(2 * run_.config.optimizer.skip_step.window +
                                                run_.config.train.spikes.window + counts);
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
