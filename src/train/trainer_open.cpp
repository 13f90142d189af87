// Starts or resumes a run: opens its directory, loads the latest checkpoint and reports the changes
// of the configuration since.
#include <algorithm>
#include <cmath>

#include "comm/exchange.h"
#include "core/file.h"
#include "core/log.h"
#include "train/config/changes.h"
#include "train/config/model.h"
#include "train/initial_weights.h"
#include "train/memory_check.h"
#include "train/trainer.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// Returns the newest ancestor that is complete and has no skipped steps; empty if there is none.
std::string newest_healthy(const fs::path& folder, const std::vector<Ancestor>& ancestors) {
  for (auto one = ancestors.rbegin(); one != ancestors.rend(); ++one) {
    const CheckpointPaths at{folder, one->name};
    if (!fs::exists(at.model()) || !what_is_missing(at).empty()) continue;
    if (saved_state(at.model()).skipped == 0) return at.model().string();
  }
  return "";
}

}  // namespace

std::optional<fs::path> Trainer::open_directory(ResumeMode resume) {
  const fs::path checkpoints = directory_ / "checkpoints";
  std::string latest;
  together(host(), [&] {
    if (!is_first()) return;
    if (resume == ResumeMode::Never && fs::exists(directory_ / "metrics.jsonl"))
      user_error(
          "{} already holds a run: continue it with --resume auto, or choose another run.dir",
          directory_.string());
    std::error_code error;
    fs::create_directories(checkpoints, error);
    if (error) failure("cannot create {}: {}", checkpoints.string(), error.message());
    lock_ = std::make_unique<DirectoryLock>(directory_);
    clean_up_checkpoints(checkpoints);
    if (const auto found = find_latest_checkpoint(checkpoints)) latest = found->string();
  });
  latest = text_of(host(), 0, latest);
  if (latest.empty()) return std::nullopt;
  return latest;
}

void Trainer::follow_checkpoint(const fs::path& checkpoint) {
  try {
    continue_rope_scaling(config_, read_hf_config(checkpoint / "config.json"));
  } catch (const UserError&) {
    // The checkpoint is damaged; load_checkpoint() reports that.
  }
}

void Trainer::open_run(ResumeMode resume) {
  const std::optional<fs::path> latest = open_directory(resume);
  const bool init = !config_.model_init.empty();
  if (latest) follow_checkpoint(*latest);
  startup_.mark("open run");
  together(host(), [&] {
    engine_ = std::make_unique<Engine>(backend_, backend_,
                                       engine_options(config_, groups_->ranks()), *groups_);
    startup_.mark("allocate memory");
    latest || init ? engine_->prepare() : engine_->initialize(config_.run.seed);
  });
  std::string origin;  // of the weights, with model.init
  if (latest) {
    state_ = load_checkpoint(*latest, *engine_);
  } else if (init) {
    SubtokenRows subtokens;
    together(host(), [&] { subtokens = subtokens_of(config_, data_->tokenizer()); });
    origin = load_initial_weights(config_.model_init, *engine_, subtokens);
  }
  backend_.synchronize();  // so that this phase includes the device's work
  startup_.mark(latest ? "load checkpoint" : init ? "load weights" : "initialize weights");
  together(host(), [&] {
    if (latest) {
      check_same_run();
      take_over(*latest);
    } else {
      state_.seed = config_.run.seed;
      state_.data = data_->fingerprint();
    }
    if (!is_first()) return;
    data_->check_content(directory_ / "data.json", latest.has_value());
    open_log_file(directory_ / "log.txt");
    if (latest) report_changes(*latest);
    if (!finished()) write_file_atomically(directory_ / "config.yaml", to_yaml(config_));
    log_ = std::make_unique<RunLog>(directory_, schedule_.total_steps);
    open_log_ = log_.get();
  });
  before_ = {.steps = state_.step, .samples = state_.samples};
  batches_ = config_.batches(before_);
  record_.step = state_.step;
  record_.tokens = state_.tokens;
  // Unknown before the first step of this process.
  record_.loss = NAN;
  record_.tokens_per_s = NAN;
  const std::int64_t steps_left = std::max<std::int64_t>(schedule_.total_steps - state_.step, 0);
  loader_ = std::make_unique<BatchLoader>(data_->order(), data_->sample_options(),
                                          BatchLoader::Plan{.schedule = batches_,
                                                            .first_step = state_.step + 1,
                                                            .batches = steps_left,
                                                            .rank = groups_->coordinates.dp,
                                                            .ranks = groups_->grid.dp,
                                                            .depth = config_.data.prefetch});
  startup_.mark("open run");
  peak_ = backend_.peak_flops(config_.train.precision);
  startup_.mark("measure peak");
  announce();
  log_info("{}", memory_table(engine_->arena(), backend_));
  log_info("run directory: {}", directory_.string());
  if (latest) log_info("continuing from {} (step {})", latest->string(), state_.step);
  if (!origin.empty()) report_origin(origin);
  if (finished())
    log_info("all {} steps are done: to train on, raise train.steps or train.tokens", state_.step);
}

void Trainer::report_origin(const std::string& weights) const {
  log_info("starting from the weights in {}", weights);
  if (!is_first()) return;
  const std::string warning = other_tokenizer(config_.model_init, data_->tokenizer());
  if (!warning.empty()) log_warning("{}", warning);
}

void Trainer::check_same_run() const {
  if (state_.seed != config_.run.seed)
    user_error("the run in {} was started with seed {}, the configuration says {}",
               directory_.string(), state_.seed, config_.run.seed);
  if (state_.data != data_->fingerprint())
    user_error(
        "the run in {} was started on other data, weights, data.valid_fraction, "
        "data.sequence_length, data.packing or (with max_epochs or order megatron) for another "
        "number of steps: its data position cannot be carried over; choose another run.dir",
        directory_.string());
  if (state_.step > schedule_.total_steps)
    user_error(
        "the run in {} has done {} steps, the configuration asks for {}: raise train.steps (or "
        "train.tokens), or point checkpoints/latest to an earlier checkpoint",
        directory_.string(), state_.step, schedule_.total_steps);
}

void Trainer::take_over(const fs::path& checkpoint) {
  // A checkpoint in another precision has no usable loss scale.
  if (scaler_.dynamic() && saved_precision(checkpoint) == DType::F16)
    scaler_.restore(state_.loss_scale);
  health_.restore(state_.skipped);
  last_checkpoint_ = checkpoint.string();
  if (health_.healthy()) last_healthy_ = last_checkpoint_;
  if (!is_first()) return;
  mark_branches({checkpoint.parent_path(), checkpoint.filename().string()});
  ancestors_ = ancestors_after(checkpoint);
  if (last_healthy_.empty()) last_healthy_ = newest_healthy(checkpoint.parent_path(), ancestors_);
}

// Compares with the configuration in the checkpoint; older versions saved it only in the run
// directory.
void Trainer::report_changes(const fs::path& checkpoint) const {
  std::string before = saved_config(checkpoint);
  if (before.empty() && fs::exists(directory_ / "config.yaml"))
    before = read_text_file(directory_ / "config.yaml");
  if (before.empty() || finished()) return;
  const std::int64_t next = state_.step + 1;
  for (const ConfigChange& change : config_changes(before, config_))
    log_info("changed: {} {} → {} from step {} on", change.key, change.before, change.after, next);
  try {
    const Schedule then = schedule_of(parse_run_config(before, "the checkpoint's config.yaml"));
    const std::string jump = schedule_jump(then, schedule_, next);
    if (!jump.empty()) log_warning("{}", jump);
  } catch (const UserError&) {
    // Written by a version with other keys: the changes above are all that can be compared.
  }
}

}  // namespace kintsugi
