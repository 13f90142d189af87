#include "train/trainer/evaluations.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "comm/exchange.h"
#include "core/log.h"
#include "core/units.h"
#include "serve/text_output.h"
#include "train/training_model.h"

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

constexpr std::size_t kLongestShown = 120;  // bytes of a sample in the log; the file has all of it

// On one line; line breaks are shown as they are written in a configuration.
std::string shown_sample(const TextSample& sample) {
  std::string text;
  for (const char c : sample.prompt + sample.text)
    if (c == '\n')
      text += "\\n";
    else if (c == '\r')
      text += "\\r";
    else
      text += c;
  if (text.size() <= kLongestShown) return text;
  text.resize(kLongestShown);
  text.resize(complete_characters(text));
  return text + " …";
}

}  // namespace

Evaluations::Evaluations(RunContext& run) : run_(run) {
  if (run_.is_first() && !run_.config.train.eval_tasks.empty()) {
    tasks_ = std::make_unique<RunTasks>(run_.config, run_.data->tokenizer());
    run_.startup.mark("load tasks");
  }
  if (!run_.config.train.samples.prompts.empty())
    samples_.emplace(run_.config, run_.data->tokenizer());
}

// A run that continues from an earlier step than the one before ended with does not evaluate the
// same steps again.
void Evaluations::find_evaluated() {
  evaluated_.clear();
  if (run_.config.train.eval_tasks.empty()) return;
  std::string steps;
  if (run_.is_first())
    for (const std::int64_t step : run_.log->evaluated())
      if (step > run_.state.step) steps += std::to_string(step) + " ";
  std::istringstream text(text_of(run_.host(), 0, steps));
  for (std::int64_t step = 0; text >> step;) evaluated_.insert(step);
}

bool Evaluations::tasks_are_due(bool saves, bool asked) const {
  if (run_.config.train.eval_tasks.empty() || run_.stops.decided()) return false;
  if (evaluated_.contains(run_.state.step)) return false;
  const std::int64_t every = run_.config.train.eval_tasks_every;
  return asked || run_.finished() || (every > 0 ? run_.due(every) : saves);
}

void Evaluations::evaluate_tasks() {
  const auto begin = std::chrono::steady_clock::now();
  const EnergySpan energy(run_.energy, RunPhase::Validation);
  show_live_line("evaluating tasks …");
  run_.note_activity();
  TrainingModel model(*run_.engine, tasks_ ? &tasks_->tokenizer() : nullptr);
  LedModel led(
      model, run_.host(), [this] { return run_.interrupted(); },
      block_tokens(run_.config, run_.groups));
  std::optional<Progress> progress;
  if (run_.is_first()) progress.emplace("evaluate tasks", 0, "requests");
  try {
    if (!run_.is_first()) led.follow();
    if (run_.is_first()) run_.record.tasks = tasks_->evaluate(led, run_.noting_activity(*progress));
    if (run_.is_first()) led.finish();
  } catch (const LedModel::Interrupted&) {
    log_info("step {:>6}  the evaluation of tasks was interrupted", run_.state.step);
  } catch (const ScoreNotFinite& error) {
    if (run_.is_first())
      log_warning("step {}: tasks were not evaluated: {}", run_.state.step, error.what());
  } catch (...) {
    if (run_.is_first()) led.finish();
    throw;
  }
  progress.reset();
  run_.communication = run_.communication_times();  // not part of the next step
  const double seconds = seconds_since(begin);
  if (run_.is_first()) report_tasks();
  run_.note_validation_time(seconds);
}

void Evaluations::report_tasks() const {
  for (const StepRecord::TaskMetric& one : run_.record.tasks)
    log_info("step {:>6}  {} {} {:.4f}{}", run_.state.step, one.task, one.metric, one.value,
             one.stderr_of_mean ? fmt::format(" ± {:.4f}", *one.stderr_of_mean) : "");
}

bool Evaluations::samples_are_due(bool saves) const {
  return samples_ && !run_.stops.decided() && (saves || run_.finished());
}

void Evaluations::generate_samples() {
  const auto begin = std::chrono::steady_clock::now();
  const EnergySpan energy(run_.energy, RunPhase::Validation);
  show_live_line("generating samples …");
  std::optional<std::vector<TokenIds>> found;
  std::string problem = "was interrupted";
  try {
    found = continue_greedily(*run_.engine, samples_->ids(),
                              {.tokens = run_.config.train.samples.tokens,
                               .end_token = run_.config.model.eos_token,
                               .interrupts = [this] { return run_.interrupted(); }});
  } catch (const LogitsNotFinite& error) {
    problem = error.what();
  }
  run_.communication = run_.communication_times();  // not part of the next step
  const double seconds = seconds_since(begin);
  run_.note_validation_time(seconds);
  if (!run_.is_first()) return;
  if (!found) return log_warning("step {}: no samples: {}", run_.state.step, problem);
  std::vector<TextSample> texts;
  for (std::size_t i = 0; i < found->size(); ++i)
    texts.push_back({run_.config.train.samples.prompts[i], samples_->text(i, (*found)[i])});
  run_.log->files().add_samples(run_.state.step, run_.startup.now_s(), texts);
  log_info("step {:>6}  {} in {}, the first: {}", run_.state.step,
           format_number(std::ssize(texts), "sample"), format_duration(seconds),
           shown_sample(texts.front()));
}

}  // namespace kintsugi
