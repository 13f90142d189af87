// Evaluates the tasks of train.eval_tasks with the model as it is trained.
#include <algorithm>
#include <sstream>

#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"
#include "train/led_model.h"
#include "train/trainer.h"

namespace kintsugi {
namespace {

// Between two looks at signals and the wall time: as many micro-batches on each rank, but no more
// tokens than can be sent to all ranks in a moment.
constexpr std::int64_t kBlockMicroBatches = 32, kMostBlockTokens = 1 << 24;

std::size_t block_tokens(const RunConfig& config, const Groups& groups) {
  const std::int64_t round =
      config.layout.micro_batch * config.data.sequence_length * groups.grid.dp;
  return static_cast<std::size_t>(
      std::max(round, std::min(kBlockMicroBatches * round, kMostBlockTokens)));
}

}  // namespace

// A run that continues from an earlier step than the one before ended with does not evaluate the
// same steps again.
void Trainer::find_evaluated() {
  evaluated_.clear();
  if (config_.train.eval_tasks.empty()) return;
  std::string steps;
  if (is_first())
    for (const std::int64_t step : log_->evaluated())
      if (step > state_.step) steps += std::to_string(step) + " ";
  std::istringstream text(text_of(host(), 0, steps));
  for (std::int64_t step = 0; text >> step;) evaluated_.insert(step);
}

bool Trainer::tasks_are_due() const {
  if (config_.train.eval_tasks.empty() || stops_.decided()) return false;
  if (evaluated_.contains(state_.step)) return false;
  const std::int64_t every = config_.train.eval_tasks_every;
  return finished() || (every > 0 ? due(every) : save_is_due());
}

void Trainer::evaluate_tasks() {
  const auto begin = Clock::now();
  const EnergySpan energy(energy_, RunPhase::Validation);
  show_live_line("evaluating tasks …");
  note_activity();
  TrainingModel model(*engine_, tasks_ ? &tasks_->tokenizer() : nullptr);
  const auto interrupts = [this] {
    note_activity();
    double asks = stops_.ask();
    sum_over_ranks(std::span(&asks, 1));
    stops_.decide(asks);
    return stops_.decided();
  };
  LedModel led(model, host(), interrupts, block_tokens(config_, *groups_));
  std::optional<Progress> progress;
  if (is_first()) progress.emplace("evaluate tasks", 0, "requests");
  try {
    if (!is_first()) led.follow();
    if (is_first()) record_.tasks = tasks_->evaluate(led, noting_activity(*progress));
    if (is_first()) led.finish();
  } catch (const LedModel::Interrupted&) {
    log_info("step {:>6}  the evaluation of tasks was interrupted", state_.step);
  } catch (const ScoreNotFinite& error) {
    if (is_first()) log_warning("step {}: tasks were not evaluated: {}", state_.step, error.what());
  } catch (...) {
    if (is_first()) led.finish();
    throw;
  }
  progress.reset();
  communication_ = communication_times();  // not part of the next step
  const double seconds = seconds_since(begin);
  if (is_first()) report_tasks();
  note_validation_time(seconds);
}

void Trainer::report_tasks() const {
  for (const StepRecord::TaskMetric& one : record_.tasks)
    log_info("step {:>6}  {} {} {:.4f}{}", state_.step, one.task, one.metric, one.value,
             one.stderr_of_mean ? fmt::format(" ± {:.4f}", *one.stderr_of_mean) : "");
}

}  // namespace kintsugi
