#include "train/trainer/run_opening.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "train/config/changes.h"
#include "train/config/config.h"
#include "train/config/model.h"
#include "train/engine_options.h"
#include "train/initial_weights.h"
#include "train/memory_check.h"
#include "train/run_history.h"
#include "train/trainer.h"
#include "train/trainer/fp8_statistics.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// What a run that continues is compared with. run.state is that of the checkpoint.

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

void check_same_order(const RunContext& run, const RunStart& start) {
  if (run.state.data == run.data->fingerprint()) return;
  const PastOrder past{run.state.data, past_order(start.checkpoint).seed};
  const std::string other = run.data->difference_from(past);
  if (!other.empty())
    user_error(
        "the run in {} was started with another order of samples ({}): its data position cannot be "
        "carried over; restore the setting, or choose another run.dir",
        run.directory.string(), other);
}

void check_same_run(const RunContext& run, const RunStart& start) {
  if (run.state.seed != run.config.run.seed)
    user_error("the run in {} was started with seed {}, the configuration says {}",
               run.directory.string(), run.state.seed, run.config.run.seed);
  check_same_order(run, start);
  if (run.state.step <= run.schedule.last_step()) return;
  const std::string title = run.config.stage_title(),
                    keys = title.empty() ? "train." : fmt::format("stages[{}].", run.config.stage);
  user_error(
      "{}the run in {} has done {} steps, the configuration asks for {}: raise {}steps (or "
      "{}tokens), or point checkpoints/latest to an earlier checkpoint",
      title.empty() ? "" : title + " of ", run.directory.string(),
      run.state.step - run.state.stage_start, run.schedule.total_steps, keys, keys);
}

// The last entries of the history are the stages of this run that are finished, and run.state.stage
// is the one of the checkpoint.
void check_finished_stages(const RunContext& run) {
  const auto finished_before = static_cast<std::size_t>(run.state.stage);
  if (run.state.history.size() < finished_before)
    user_error("the latest checkpoint in {} is damaged: it has no history of its stages",
               run.directory.string());
  std::vector<std::int64_t> trained;
  for (std::size_t i = run.state.history.size() - finished_before; i < run.state.history.size();
       ++i)
    trained.push_back(run.state.history[i].last_step - run.state.history[i].first_step + 1);
  if (run.state.stage < run.config.stage) trained.push_back(run.state.step - run.state.stage_start);
  if (static_cast<std::int64_t>(trained.size()) != run.config.stage)
    user_error("the run in {} is in stage {}, not in stage {}: run the command again",
               run.directory.string(), run.state.stage + 1, run.config.stage + 1);
  for (std::size_t i = 0; i < trained.size(); ++i)
    if (trained[i] != run.config.stages[i].total_steps())
      user_error(
          "stage {} ({}) of the run in {} was trained for {} steps, the configuration asks for {}: "
          "restore it, because a finished stage cannot change",
          i + 1, run.config.stages[i].stage_name, run.directory.string(), trained[i],
          run.config.stages[i].total_steps());
}

// UserError if the configuration asks for another run than that of the checkpoint. Sets the first
// step of the schedule. `begins`: a run or a stage begins.
void check_start(RunContext& run, const std::optional<RunStart>& start, bool begins) {
  run.schedule.first_step = begins ? run.state.step : run.state.stage_start;
  if (start && !start->other_run) check_finished_stages(run);
  if (start && !begins) check_same_run(run, *start);
}

// The record of the content of the stage's data.
fs::path data_record(const RunContext& run) {
  const std::int64_t stage = run.config.stage;
  return run.directory / (stage == 0 ? "data.json" : fmt::format("data-stage-{}.json", stage + 1));
}

// Logs every configuration key whose value has changed since the checkpoint, and a jump of the
// learning rate. Older versions saved the configuration only in the run directory. A run that has a
// checkpoint keeps its run.from.
void report_changes(RunContext& run, const RunStart& start) {
  std::string before = saved_config(start.checkpoint);
  if (before.empty() && !start.other_run && fs::exists(run.directory / "config.yaml"))
    before = read_text_file(run.directory / "config.yaml");
  if (before.empty() || run.finished()) return;
  const std::int64_t next = run.state.step + 1;
  for (const ConfigChange& change : config_changes(before, run.config)) {
    const bool origin = change.key == "run.from";
    if (change.key == "run.dir" || (origin && start.other_run)) continue;
    log_info("changed: {} {} → {} {}", change.key, change.before, change.after,
             when_changed(change.key, run.config, next));
    if (origin && change.before == "null") run.config.run.from.reset();
    if (origin && change.before != "null") run.config.run.from = change.before;
  }
  try {
    const TrainerState then = saved_state(start.checkpoint);
    RunConfig saved =
        parse_saved_config(before, "the checkpoint's config.yaml").at_stage(then.stage);
    saved.past_batches = then.batches;
    Schedule previous = schedule_of(saved);
    previous.first_step = then.stage_start;
    if (run.config.train.ema.on() && saved.train.ema.on() && !fs::exists(start.checkpoint / "ema"))
      log_warning("{} is missing: the average of the weights starts again from those of step {}",
                  (start.checkpoint / "ema").string(), run.state.step);
    const std::string jump = schedule_jump(previous, run.schedule, next);
    if (!jump.empty()) log_warning("{}", jump);
  } catch (const UserError&) {
    // Written by a version with other keys: the changes above are all that can be compared.
  }
}

}  // namespace

RunOpening::RunOpening(RunContext& run, const Parts& parts)
    : run_(run), parts_(parts), groups_(&run.groups) {
  const RunConfig& config = run_.config;
  check_other_run(config);
  if (config.stage == 0 && list_checkpoints(run_.directory / "checkpoints").empty()) {
    if (!config.model_init.empty()) {
      check_initial_weights(config.model_init, config.model, run_.backend, initial_options(config));
      subtokens_of(config, run_.data->tokenizer());  // refuses a directory without a tokenizer
    }
    if (config.run.from) start_of_branch(config);
    if (run_.preference() && config.model_init.empty() && !config.run.from)
      user_error(
          "objective dpo improves a trained model, which is also its reference: set model.init");
    if (config.model.lora.on() && !config.run.from) base_of_run(config, "");
  }
  if (config.model.fp8.on()) check_fp8_device(run_.backend, config);
  check_memory(run_.backend, config, run_.groups);
}

std::optional<RunStart> RunOpening::open_directory(ResumeMode resume) {
  const fs::path checkpoints = run_.directory / "checkpoints";
  std::string latest, from;
  together(run_.host(), [&] {
    if (!run_.is_first()) return;
    if (resume == ResumeMode::Never && fs::exists(run_.directory / "metrics.jsonl"))
      user_error(
          "{} already holds a run: continue it with --resume auto, or choose another run.dir",
          run_.directory.string());
    if (!run_.lock) run_.lock = RunLock::for_ranks(run_.directory);
    run_.lock->check_in_place();
    std::error_code error;
    new_checkpoints_ = fs::create_directory(checkpoints, error);
    if (error) failure("cannot create {}: {}", checkpoints.string(), error.message());
    clean_up_checkpoints(checkpoints);
    if (const auto found = find_latest_checkpoint(checkpoints))
      latest = found->string();
    else if (run_.config.run.from)
      from = start_of_branch(run_.config).string();
  });
  latest = text_of(run_.host(), 0, latest);
  if (!latest.empty()) return RunStart{.checkpoint = latest};
  if (!run_.config.run.from) return std::nullopt;
  return RunStart{.checkpoint = text_of(run_.host(), 0, from), .other_run = true};
}

void RunOpening::follow_checkpoint(const fs::path& checkpoint) {
  try {
    continue_rope_scaling(run_.config, read_hf_config(checkpoint / "config.json"));
  } catch (const UserError&) {
    // The checkpoint is damaged; load_checkpoint() reports that.
  }
}

// One bad node must not make the run give up its checkpoints one after another.
void RunOpening::confirm_damage(const fs::path& checkpoint, const RankFailure& damage) {
  if (damage.culprits.empty()) return;  // all ranks agree
  int accuser = damage.rank();
  const std::vector<std::string> nodes = gather_texts(host(), node_name());
  const auto other =
      std::ranges::find_if(nodes, [&](const std::string& node) { return node != nodes.front(); });
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
  const std::string& node = nodes[accuser];
  throw SharedFailure(
      {.kind = FailureKind::Misread,
       .culprits = {{accuser, node}},
       .file = damage.file,
       .text = fmt::format(
           "{}; but the file is intact on another node or in a second read, so node {} may be at "
           "fault: nothing was renamed; run again, without this node if it happens again",
           damage.text, node)});
}

void RunOpening::fall_back_from(const fs::path& checkpoint, const RankFailure& damage) {
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

std::string RunOpening::load_start(const std::optional<RunStart>& start) {
  const bool init = !run_.config.model_init.empty(), adapters = run_.config.model.lora.on();
  if (start) follow_checkpoint(start->checkpoint);
  run_.startup.mark("open run");
  together(run_.host(), [&] {
    EngineOptions options = engine_options(run_.config, run_.groups.ranks());
    if (adapters)
      options.base = base_of_run(run_.config, start ? start->checkpoint : fs::path()).string();
    run_.engine = std::make_unique<Engine>(run_.backend, run_.backend, options, run_.groups);
    run_.startup.mark("allocate memory");
    start || init ? run_.engine->prepare() : run_.engine->initialize(run_.config.run.seed);
  });
  std::string origin;
  parts_.copies.make();
  const bool in_memory = start && parts_.copies.restore(*start);
  if (start && !in_memory) {
    run_.state = load_checkpoint(
        start->checkpoint, *run_.engine,
        [&](const TrainerState& state) { return run_.begins_stage(*start, state); },
        start->other_run ? CheckpointOf::OtherRun : CheckpointOf::ThisRun);
  } else if (!start && init) {
    InitialWeightsOptions options = initial_options(run_.config);
    together(run_.host(),
             [&] { options.subtokens = subtokens_of(run_.config, run_.data->tokenizer()); });
    const LoadedWeights loaded =
        load_initial_weights(run_.config.model_init, *run_.engine, options);
    origin = loaded.description;
    if (adapters) run_.state.base = loaded.fingerprint;
  }
  run_.backend.synchronize();  // so that this phase includes the device's work
  run_.startup.mark(start ? "load checkpoint" : init ? "load weights" : "initialize weights");
  return origin;
}

void RunOpening::enter_stage(const std::optional<RunStart>& start, bool begins) {
  if (start) take_over(*start);
  if (start && begins && !start->other_run && run_.is_first()) keep_always(start->checkpoint);
  if (start && begins) {
    run_.state = next_stage(std::move(run_.state), start->checkpoint);
    parts_.guard.spikes().restore(run_.state.spikes);  // the losses of other data say nothing
  }
  if (start && !begins) {
    run_.state.batches = run_.config.past_batches;
    run_.state.data = run_.data->fingerprint();  // that of an earlier version had no seed
    return;
  }
  run_.state.stage = run_.config.stage;
  run_.state.seed = run_.config.run.seed;
  run_.state.data = run_.data->fingerprint();
}

// The run directory itself is removed with its lock, if it is empty. Here, because a process that
// fails alone ends without destructors.
void RunOpening::remove_created() {
  std::error_code ignored;  // what is not empty stays
  if (new_checkpoints_) fs::remove(run_.directory / "checkpoints", ignored);
  run_.lock.reset();
}

RunOpening::Opened RunOpening::open(ResumeMode resume) {
  Opened opened{.start = open_directory(resume)};
  const std::optional<RunStart>& start = opened.start;
  try {
    if (run_.preference()) parts_.reference.open(start);
    opened.weights = load_start(start);
    if (run_.preference()) {
      parts_.reference.complete(*run_.engine);
      run_.startup.mark("reference model");
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
  opened.begins = !start || run_.begins_stage(*start, run_.state);
  together(run_.host(), [&] {
    check_start(run_, start, opened.begins);
    enter_stage(start, opened.begins);
    if (run_.is_first()) open_files(opened);
  });
  run_.continue_from_state();
  if (!run_.config.stages.empty()) run_.record.stage = run_.config.stage_name;
  // Unknown before the first step of this process.
  run_.record.loss = NAN;
  run_.record.tokens_per_s = NAN;
  return opened;
}

// On rank 0.
void RunOpening::open_files(const Opened& opened) {
  const RunConfig& config = run_.config;
  parts_.feed.check_content(run_.data->check_content(data_record(run_), !opened.begins));
  open_log_file(run_.directory / "log.txt");
  if (opened.start) report_changes(run_, *opened.start);
  parts_.reference.write_record();
  if (!run_.finished()) write_config_file(run_.directory / "config.yaml", config);
  run_.log = std::make_unique<RunLog>(
      run_.directory, run_.last_step(),
      AttemptClock{run_.startup.launched_s(), [startup = run_.startup] { return startup.now_s(); }},
      SinkOptions{.tensorboard = config.run.tensorboard,
                  .prometheus = config.run.prometheus,
                  .wandb = config.run.wandb},
      config.run.notify);
  run_.open_log = run_.log.get();
}

RunOpening::Opened RunOpening::preview() {
  Opened opened;
  if (const auto found = look_for_latest_checkpoint(run_.directory / "checkpoints"))
    opened.start = RunStart{.checkpoint = *found};
  else if (run_.config.run.from)
    opened.start = RunStart{.checkpoint = start_of_branch(run_.config), .other_run = true};
  if (opened.start) {
    follow_checkpoint(opened.start->checkpoint);
    run_.state = saved_state(opened.start->checkpoint);
  } else {
    opened.weights = run_.config.model_init;
  }
  opened.begins = !opened.start || run_.begins_stage(*opened.start, run_.state);
  check_start(run_, opened.start, opened.begins);
  run_.data->compare_content(data_record(run_), !opened.begins);
  if (opened.start) report_changes(run_, *opened.start);
  return opened;
}

void RunOpening::report_origin(const Opened& opened) const {
  if (opened.start) report_start(*opened.start, opened.begins);
  if (opened.weights.empty()) return;
  log_info("starting from the weights in {}", opened.weights);
  warn_of_other_tokenizer(run_.config.model_init);
}

void RunOpening::report_start(const RunStart& start, bool begins) const {
  const std::string checkpoint = start.checkpoint.string();
  if (run_.is_first() && run_.log && !begins)
    run_.log->events().add("resumed", run_.state.step, "continues from " + checkpoint);
  if (parts_.copies.restored())
    log_info("continuing from the copy in memory of step {}, after {}", run_.state.step,
             checkpoint);
  else if (!begins)
    log_info("continuing from {} (step {})", checkpoint, run_.state.step);
  else if (!start.other_run)
    log_info("begins from {} (step {})", checkpoint, run_.state.step);
  else
    log_info("continues {} at step {}, trains {} more", checkpoint, run_.state.step,
             run_.schedule.total_steps);
  if (start.other_run && begins && !parts_.copies.restored())
    warn_of_other_tokenizer(start.checkpoint);
}

void RunOpening::warn_of_other_tokenizer(const fs::path& model) const {
  if (!run_.is_first()) return;
  const std::string warning = other_tokenizer(model, run_.data->tokenizer());
  if (!warning.empty()) log_warning("{}", warning);
}

std::string RunOpening::newest_healthy_checkpoint() const {
  for (auto one = run_.checkpoints.ancestors.rbegin(); one != run_.checkpoints.ancestors.rend();
       ++one) {
    const CheckpointPaths at{run_.directory / "checkpoints", one->name};
    if (!fs::exists(at.model()) || !what_is_missing(at).empty()) continue;
    try {
      if (saved_state(at.model()).skipped == 0) return at.model().string();
    } catch (const UserError&) {
      continue;  // damaged
    }
  }
  return "";
}

void RunOpening::take_over(const RunStart& start) {
  const fs::path& checkpoint = start.checkpoint;
  // A checkpoint in another precision has no usable loss scale.
  parts_.guard.restore(run_.state,
                       run_.config.train.precision == DType::F16 &&
                           (parts_.copies.restored() || saved_precision(checkpoint) == DType::F16));
  LastCheckpoints& known = run_.checkpoints;
  known.last = checkpoint.string();
  if (parts_.guard.health().healthy()) known.healthy = known.last;
  known.of_other_run = start.other_run;
  if (!run_.is_first() || start.other_run) return;
  mark_branches({checkpoint.parent_path(), checkpoint.filename().string()});
  known.ancestors = ancestors_after(checkpoint);
  if (known.healthy.empty()) known.healthy = newest_healthy_checkpoint();
}

// Loads the checkpoint and leaves out its next samples up to `position`.
RunOpening::Rewound RunOpening::go_back_to(const fs::path& checkpoint, std::int64_t position) {
  parts_.feed.close();
  run_.engine->prepare();
  run_.state = load_checkpoint(checkpoint, *run_.engine);
  parts_.copies.give_up();
  run_.unsaved = true;
  run_.engine->sharding().weights_changed();  // gathered copies are out of date
  run_.engine->sharding().finish_weights();
  const std::int64_t from = data_position(run_.state.skipped_samples, run_.state.samples);
  const std::int64_t to =
      std::max(position, from + run_.config.train.spikes.skip_batches * run_.config.batch.global);
  run_.state.skipped_samples.push_back({.at = run_.state.samples, .count = to - from});
  together(run_.host(), [&] { take_over({.checkpoint = checkpoint}); });
  run_.continue_from_state();
  parts_.feed.open();
  return {checkpoint, from, to};
}

}  // namespace kintsugi
