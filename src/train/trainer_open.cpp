// Starts or resumes a run: opens its directory, loads the latest checkpoint and reports the changes
// of the configuration since.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/file.h"
#include "core/log.h"
#include "train/config/changes.h"
#include "train/config/config_file.h"
#include "train/config/model.h"
#include "train/initial_weights.h"
#include "train/memory_check.h"
#include "train/run_history.h"
#include "train/trainer.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// When a change of this key takes effect.
std::string when_changed(const std::string& key, const RunConfig& config, std::int64_t next_step) {
  if (key == "run.from")
    return "without effect: the run continues its own checkpoint, and its config.yaml keeps the "
           "old value";
  const std::string list = "stages[";
  const std::int64_t stage =
      key.starts_with(list) ? std::strtoll(key.c_str() + list.size(), nullptr, 10) : config.stage;
  if (stage < config.stage) return "without effect: that stage is finished";
  return stage > config.stage ? "from that stage on" : fmt::format("from step {} on", next_step);
}

}  // namespace

std::optional<Trainer::Start> Trainer::open_directory(ResumeMode resume) {
  const fs::path checkpoints = directory_ / "checkpoints";
  std::string latest, from;
  together(host(), [&] {
    if (!is_first()) return;
    if (resume == ResumeMode::Never && fs::exists(directory_ / "metrics.jsonl"))
      user_error(
          "{} already holds a run: continue it with --resume auto, or choose another run.dir",
          directory_.string());
    if (!lock_) lock_ = RunLock::for_ranks(directory_);
    lock_->check_in_place();
    std::error_code error;
    new_checkpoints_ = fs::create_directory(checkpoints, error);
    if (error) failure("cannot create {}: {}", checkpoints.string(), error.message());
    clean_up_checkpoints(checkpoints);
    if (const auto found = find_latest_checkpoint(checkpoints))
      latest = found->string();
    else if (config_.run.from)
      from = start_of_branch(config_).string();
  });
  latest = text_of(host(), 0, latest);
  if (!latest.empty()) return Start{.checkpoint = latest};
  if (!config_.run.from) return std::nullopt;
  return Start{.checkpoint = text_of(host(), 0, from), .other_run = true};
}

void Trainer::follow_checkpoint(const fs::path& checkpoint) {
  try {
    continue_rope_scaling(config_, read_hf_config(checkpoint / "config.json"));
  } catch (const UserError&) {
    // The checkpoint is damaged; load_checkpoint() reports that.
  }
}

// One bad node must not make the run give up its checkpoints one after another.
void Trainer::confirm_damage(const fs::path& checkpoint, const RankFailure& damage) {
  if (damage.culprits.empty()) return;  // all ranks agree
  int accuser = damage.rank();
  const std::vector<std::string> nodes = gather_texts(host(), node_name());
  const auto other = std::find_if(nodes.begin(), nodes.end(),
                                  [&](const std::string& node) { return node != nodes.front(); });
  const auto second = static_cast<int>(other == nodes.end() ? 0 : other - nodes.begin());
  const int own = host().rank();
  double good = 0;
  std::string verdict = "good";
  together(host(), [&] {
    if (own != 0 && own != second) return;
    if (is_still_damaged(checkpoint, damage.file)) verdict = "damaged";
    if (verdict == "good") good = 1;
  });
  sum_over_ranks(std::span(&good, 1));
  if (good == 0) return;
  for (const int one : {0, second})
    if (text_of(host(), one, verdict) == "damaged") accuser = one;
  const std::string& node = nodes[static_cast<std::size_t>(accuser)];
  throw SharedFailure(
      {.kind = FailureKind::Misread,
       .culprits = {{accuser, node}},
       .file = damage.file,
       .text = fmt::format(
           "{}; but the file is intact on another node or in a second read, so node {} may be at "
           "fault: nothing was renamed; run again, without this node if it happens again",
           damage.text, node)});
}

void Trainer::fall_back_from(const fs::path& checkpoint, const RankFailure& damage) {
  confirm_damage(checkpoint, damage);
  std::string next;
  together(host(), [&] {
    if (!is_first()) return;
    const fs::path model = fs::canonical(checkpoint);
    next = fall_back({model.parent_path(), model.filename().string()}, damage.text);
  });
  next = text_of(host(), 0, next);
  if (next.empty())
    throw SharedUserError(
        {.kind = FailureKind::DamagedFile,
         .file = damage.file,
         .text = fmt::format("{}; the run has no other checkpoint: copy {} again from a backup, or "
                             "choose another run.dir",
                             damage.text, checkpoint.string())});
  throw CheckpointSetAside(
      {.kind = FailureKind::Error,
       .file = damage.file,
       .text = fmt::format("{}: run again to continue from {}", damage.text, next)});
}

std::string Trainer::load_start(const std::optional<Start>& start) {
  const bool init = !config_.model_init.empty(), adapters = config_.model.lora.on();
  if (start) follow_checkpoint(start->checkpoint);
  startup_.mark("open run");
  together(host(), [&] {
    EngineOptions options = engine_options(config_, groups_->ranks());
    if (adapters)
      options.base = base_of_run(config_, start ? start->checkpoint : fs::path()).string();
    engine_ = std::make_unique<Engine>(backend_, backend_, options, *groups_);
    startup_.mark("allocate memory");
    start || init ? engine_->prepare() : engine_->initialize(config_.run.seed);
  });
  std::string origin;
  make_memory_copies();
  const bool in_memory = start && restore_from_memory(*start);
  if (start && !in_memory) {
    state_ = load_checkpoint(
        start->checkpoint, *engine_,
        [&](const TrainerState& state) { return begins_stage(*start, state); },
        start->other_run ? CheckpointOf::OtherRun : CheckpointOf::ThisRun);
  } else if (!start && init) {
    InitialWeightsOptions options = initial_options(config_);
    together(host(), [&] { options.subtokens = subtokens_of(config_, data_->tokenizer()); });
    const LoadedWeights loaded = load_initial_weights(config_.model_init, *engine_, options);
    origin = loaded.description;
    if (adapters) state_.base = loaded.fingerprint;
  }
  backend_.synchronize();  // so that this phase includes the device's work
  startup_.mark(start ? "load checkpoint" : init ? "load weights" : "initialize weights");
  return origin;
}

void Trainer::check_start(const std::optional<Start>& start, bool begins) {
  schedule_.first_step = begins ? state_.step : state_.stage_start;
  if (start && !start->other_run) check_finished_stages();
  if (start && !begins) check_same_run(*start);
}

void Trainer::compare_with_record(const std::optional<Start>& start, bool begins, Content what) {
  const fs::path record =
      directory_ /
      (config_.stage == 0 ? "data.json" : fmt::format("data-stage-{}.json", config_.stage + 1));
  if (what == Content::Record) {
    content_check_ = data_->check_content(record, !begins);
    open_log_file(directory_ / "log.txt");
  } else {
    data_->compare_content(record, !begins);
  }
  if (start) report_changes(*start);
}

void Trainer::enter_stage(const std::optional<Start>& start, bool begins) {
  if (start) take_over(*start);
  if (start && begins && !start->other_run && is_first()) keep_always(start->checkpoint);
  if (start && begins) {
    state_ = next_stage(std::move(state_), start->checkpoint);
    spikes_.restore(state_.spikes);  // the losses of other data say nothing
  }
  if (start && !begins) {
    state_.batches = config_.past_batches;
    state_.data = data_->fingerprint();  // that of an earlier version had no seed
    return;
  }
  state_.stage = config_.stage;
  state_.seed = config_.run.seed;
  state_.data = data_->fingerprint();
}

// The run directory itself is removed with its lock, if it is empty. Here, because a process that
// fails alone ends without destructors.
void Trainer::remove_created() {
  std::error_code ignored;  // what is not empty stays
  if (new_checkpoints_) fs::remove(directory_ / "checkpoints", ignored);
  lock_.reset();
}

void Trainer::open_run(ResumeMode resume) {
  const std::optional<Start> start = open_directory(resume);
  std::string origin;
  try {
    if (preference()) open_reference(start);
    origin = load_start(start);
    if (preference()) {
      complete_reference(*engine_);
      startup_.mark("reference model");
    }
  } catch (const SharedUserError& error) {
    const RankFailure& failure = error.failure();
    if (failure.kind == FailureKind::DamagedFile && start && !start->other_run)
      fall_back_from(start->checkpoint, failure);
    remove_created();
    throw;
  } catch (...) {
    remove_created();
    throw;
  }
  const bool begins = !start || begins_stage(*start, state_);
  together(host(), [&] {
    check_start(start, begins);
    enter_stage(start, begins);
    if (!is_first()) return;
    compare_with_record(start, begins, Content::Record);
    write_reference_record();
    if (!finished()) write_config_file(directory_ / "config.yaml", config_);
    log_ = std::make_unique<RunLog>(
        directory_, last_step(),
        AttemptClock{startup_.launched_s(), [startup = startup_] { return startup.now_s(); }},
        SinkOptions{.tensorboard = config_.run.tensorboard, .prometheus = config_.run.prometheus},
        config_.run.notify);
    open_log_ = log_.get();
  });
  find_evaluated();
  before_ = {.steps = state_.step, .samples = state_.samples};
  later_flops_ = flops_of_later_stages();
  batches_ = config_.batches_after(before_);
  record_.step = state_.step;
  record_.tokens = state_.tokens;
  if (!config_.stages.empty()) record_.stage = config_.stage_name;
  // Unknown before the first step of this process.
  record_.loss = NAN;
  record_.tokens_per_s = NAN;
  open_loader();
  open_saves();
  startup_.mark("open run");
  peak_ = backend_.peak_flops(config_.train.precision);
  startup_.mark("measure peak");
  announce();
  log_info("{}", memory_table(engine_->arena(), backend_));
  if (saver_) report_snapshot();
  open_memory_copies();
  log_info("run directory: {}", directory_.string());
  write_layout();
  report_origin(start, begins, origin);
  if (finished() && config_.steps_after() == 0)
    log_info("all {} steps are done: to train on, {}", state_.step,
             config_.stages.empty() ? "raise train.steps or train.tokens"
                                    : "lengthen the last stage or add one");
}

void Trainer::open_loader() {
  const std::int64_t steps_left = std::max<std::int64_t>(schedule_.last_step() - state_.step, 0);
  loader_ = std::make_unique<BatchLoader>(data_->order(), data_->sample_options(),
                                          BatchLoader::Plan{.schedule = batches_,
                                                            .first_step = state_.step + 1,
                                                            .batches = steps_left,
                                                            .rank = groups_->coordinates.dp,
                                                            .ranks = groups_->grid.dp,
                                                            .depth = config_.data.prefetch,
                                                            .skipped = state_.skipped_samples});
}

// `weights` describes those of model.init.
void Trainer::report_origin(const std::optional<Start>& start, bool begins,
                            const std::string& weights) const {
  if (start) report_start(*start, begins);
  if (weights.empty()) return;
  log_info("starting from the weights in {}", weights);
  warn_of_other_tokenizer(config_.model_init);
}

// As open_run(), but it reads only what is not in the weights and changes nothing.
void Trainer::preview_start() {
  std::optional<Start> start;
  if (const auto found = look_for_latest_checkpoint(directory_ / "checkpoints"))
    start = Start{.checkpoint = *found};
  else if (config_.run.from)
    start = Start{.checkpoint = start_of_branch(config_), .other_run = true};
  if (start) {
    follow_checkpoint(start->checkpoint);
    state_ = saved_state(start->checkpoint);
  }
  const bool begins = !start || begins_stage(*start, state_);
  check_start(start, begins);
  compare_with_record(start, begins, Content::Check);
  report_origin(start, begins, start || config_.model_init.empty() ? "" : config_.model_init);
  if (config_.train.save && config_.train.async_save && !finished() && !snapshot_plan_.fits())
    warn_of_waiting_saves();
  check_time_left();
}

void Trainer::report_start(const Start& start, bool begins) const {
  const std::string checkpoint = start.checkpoint.string();
  if (is_first() && log_ && !begins)
    log_->events().add("resumed", state_.step, "continues from " + checkpoint);
  if (from_memory_)
    log_info("continuing from the copy in memory of step {}, after {}", state_.step, checkpoint);
  else if (!begins)
    log_info("continuing from {} (step {})", checkpoint, state_.step);
  else if (!start.other_run)
    log_info("begins from {} (step {})", checkpoint, state_.step);
  else
    log_info("continues {} at step {}, trains {} more", checkpoint, state_.step,
             schedule_.total_steps);
  if (start.other_run && begins && !from_memory_) warn_of_other_tokenizer(start.checkpoint);
}

void Trainer::warn_of_other_tokenizer(const fs::path& model) const {
  if (!is_first()) return;
  const std::string warning = other_tokenizer(model, data_->tokenizer());
  if (!warning.empty()) log_warning("{}", warning);
}

void Trainer::check_same_run(const Start& start) const {
  if (state_.seed != config_.run.seed)
    user_error("the run in {} was started with seed {}, the configuration says {}",
               directory_.string(), state_.seed, config_.run.seed);
  check_same_order(start);
  if (state_.step <= schedule_.last_step()) return;
  const std::string title = config_.stage_title(),
                    keys = title.empty() ? "train." : fmt::format("stages[{}].", config_.stage);
  user_error(
      "{}the run in {} has done {} steps, the configuration asks for {}: raise {}steps (or "
      "{}tokens), or point checkpoints/latest to an earlier checkpoint",
      title.empty() ? "" : title + " of ", directory_.string(), state_.step - state_.stage_start,
      schedule_.total_steps, keys, keys);
}

void Trainer::check_same_order(const Start& start) const {
  if (state_.data == data_->fingerprint()) return;
  const PastOrder past{state_.data, past_order(start.checkpoint).seed};
  const std::string other = data_->difference_from(past);
  if (!other.empty())
    user_error(
        "the run in {} was started with another order of samples ({}): its data position cannot be "
        "carried over; restore the setting, or choose another run.dir",
        directory_.string(), other);
}

// The last entries of the history are the stages of this run that are finished, and state_.stage is
// the one of the checkpoint.
void Trainer::check_finished_stages() const {
  const auto finished_before = static_cast<std::size_t>(state_.stage);
  if (state_.history.size() < finished_before)
    user_error("the latest checkpoint in {} is damaged: it has no history of its stages",
               directory_.string());
  std::vector<std::int64_t> trained;
  for (std::size_t i = state_.history.size() - finished_before; i < state_.history.size(); ++i)
    trained.push_back(state_.history[i].last_step - state_.history[i].first_step + 1);
  if (state_.stage < config_.stage) trained.push_back(state_.step - state_.stage_start);
  if (static_cast<std::int64_t>(trained.size()) != config_.stage)
    user_error("the run in {} is in stage {}, not in stage {}: run the command again",
               directory_.string(), state_.stage + 1, config_.stage + 1);
  for (std::size_t i = 0; i < trained.size(); ++i)
    if (trained[i] != config_.stages[i].total_steps())
      user_error(
          "stage {} ({}) of the run in {} was trained for {} steps, the configuration asks for {}: "
          "restore it, because a finished stage cannot change",
          i + 1, config_.stages[i].stage_name, directory_.string(), trained[i],
          config_.stages[i].total_steps());
}

std::string Trainer::newest_healthy_checkpoint() const {
  for (auto one = ancestors_.rbegin(); one != ancestors_.rend(); ++one) {
    const CheckpointPaths at{directory_ / "checkpoints", one->name};
    if (!fs::exists(at.model()) || !what_is_missing(at).empty()) continue;
    try {
      if (saved_state(at.model()).skipped == 0) return at.model().string();
    } catch (const UserError&) {
      continue;  // damaged
    }
  }
  return "";
}

void Trainer::take_over(const Start& start) {
  const fs::path& checkpoint = start.checkpoint;
  // A checkpoint in another precision has no usable loss scale.
  if (scaler_.dynamic() && (from_memory_ || saved_precision(checkpoint) == DType::F16))
    scaler_.restore(state_.loss_scale);
  health_.restore(state_.skipped, state_.outliers);
  outliers_.restore(state_.recent);
  spikes_.restore(state_.spikes);
  last_checkpoint_ = checkpoint.string();
  if (health_.healthy()) last_healthy_ = last_checkpoint_;
  started_elsewhere_ = start.other_run;
  if (!is_first() || start.other_run) return;
  mark_branches({checkpoint.parent_path(), checkpoint.filename().string()});
  ancestors_ = ancestors_after(checkpoint);
  if (last_healthy_.empty()) last_healthy_ = newest_healthy_checkpoint();
}

// Compares with the configuration in the checkpoint; older versions saved it only in the run
// directory.
void Trainer::report_changes(const Start& start) {
  std::string before = saved_config(start.checkpoint);
  if (before.empty() && !start.other_run && fs::exists(directory_ / "config.yaml"))
    before = read_text_file(directory_ / "config.yaml");
  if (before.empty() || finished()) return;
  const std::int64_t next = state_.step + 1;
  for (const ConfigChange& change : config_changes(before, config_)) {
    const bool origin = change.key == "run.from";
    if (change.key == "run.dir" || (origin && start.other_run)) continue;
    log_info("changed: {} {} → {} {}", change.key, change.before, change.after,
             when_changed(change.key, config_, next));
    if (origin && change.before == "null") config_.run.from.reset();
    if (origin && change.before != "null") config_.run.from = change.before;
  }
  try {
    const TrainerState then = saved_state(start.checkpoint);
    RunConfig saved =
        parse_saved_config(before, "the checkpoint's config.yaml").at_stage(then.stage);
    saved.past_batches = then.batches;
    Schedule previous = schedule_of(saved);
    previous.first_step = then.stage_start;
    if (config_.train.ema.on() && saved.train.ema.on() && !fs::exists(start.checkpoint / "ema"))
      log_warning("{} is missing: the average of the weights starts again from those of step {}",
                  (start.checkpoint / "ema").string(), state_.step);
    const std::string jump = schedule_jump(previous, schedule_, next);
    if (!jump.empty()) log_warning("{}", jump);
  } catch (const UserError&) {
    // Written by a version with other keys: the changes above are all that can be compared.
  }
}

}  // namespace kintsugi
