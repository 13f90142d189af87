#include "train/trainer/progress_report.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/log.h"
#include "core/units.h"
#include "model/fp8.h"
#include "parallel/layout.h"
#include "train/engine_options.h"
#include "train/memory_check.h"
#include "train/records/run_files.h"

namespace kintsugi {
namespace {

constexpr double kAssumedMfu = 0.4;  // for the preview, before any measurement

// "4 micro-batches", or with a ramp "1 to 4 micro-batches".
std::string micro_batches_text(const BatchConfig& batch, std::int64_t sequences) {
  const std::int64_t last = batch.global / sequences;
  const std::int64_t first = batch.ramp.on() ? batch.ramp.start / sequences : last;
  return fmt::format("{}{} micro-batch{}", first < last ? fmt::format("{} to ", first) : "", last,
                     last == 1 ? "" : "es");
}

}  // namespace

std::string describe_layout(const RunConfig& config, const Grid& grid) {
  const Layout& layout = config.layout;
  std::string text =
      fmt::format("{} = tp {} × cp {} × dp {} × pp {}", format_number(grid.world(), "rank"),
                  grid.tp, grid.cp, grid.dp, grid.pp);
  if (layout.context != ContextMethod::Ring) text += fmt::format(", {}", to_string(layout.context));
  if (layout.ep > grid.tp) text += fmt::format(", experts on {} ranks", layout.ep);
  if (layout.sequence_parallel) text += ", sequence parallel";
  text += fmt::format(
      ", ZeRO {}{}", layout.zero,
      layout.shard_group > 0 ? fmt::format(" in groups of {}", layout.shard_group) : "");
  text += fmt::format("; {} per rank and step",
                      micro_batches_text(config.batch, grid.dp * layout.micro_batch));
  if (grid.pp > 1)
    text += fmt::format(
        ", schedule {}, layers {}", to_string(layout.schedule),
        fmt::join(checked_split(config.model, grid.pp * layout.chunks, layout.split), ","));
  return text;
}

ProgressReport::ProgressReport(RunContext& run, EnergyAccount& energy, const Validation& validation)
    : run_(run),
      energy_(energy),
      validation_(validation),
      flops_(training_flops_per_token(run.config.model, run.config.data.sequence_length)) {}

void ProgressReport::measure_peak() {
  peak_ = run_.backend.peak_flops(run_.config.train.precision);
}

void ProgressReport::announce(const std::string& tasks) const {
  const ModelSize size = count_parameters(ParameterSet(run_.config.model));
  if (!run_.config.stages.empty())
    log_info("{}: steps {}-{} of {}", run_.config.stage_title(), run_.schedule.first_step + 1,
             run_.schedule.last_step(), run_.last_step());
  log_info("{}", run_.backend.description());
  log_info("model: {}{}, {} parameters, {} precision", to_string(run_.config.model.family),
           run_.config.model_preset.empty() ? "" : " " + run_.config.model_preset,
           format_count(static_cast<double>(size.total)), to_string(run_.config.train.precision));
  // An expert that gets half of its share has dropped as many choices as it computes.
  constexpr double kFew = 0.5;
  if (const double capacity = run_.config.train.balance.capacity; capacity > 0 && capacity < kFew)
    log_warning(
        "train.balance.capacity {}: the experts compute about {:.3g} % of the choices at most, and "
        "drop the others",
        capacity, 100 * capacity);
  if (run_.config.model.fp8.on())
    log_info("{}", fp8_summary(run_.config.model, run_.config.layout.tp));
  if (size.trained < size.total)
    log_info("trained: {} parameters ({:.2f} %){}", format_count(static_cast<double>(size.trained)),
             100.0 * static_cast<double>(size.trained) / static_cast<double>(size.total),
             run_.config.model.lora.on()
                 ? fmt::format(", adapters of rank {}, scale {:g}", run_.config.model.lora.r,
                               run_.config.model.lora.scale())
                 : "");
  if (!run_.config.model_preset.empty() && !run_.config.model.rope_scaling)
    if (const auto scaling = load_preset(run_.config.model_preset).rope_scaling;
        scaling && !run_.config.rope_scaling_given)
      log_info(
          "positions: {}; the preset's rope scaling is only for more than {} positions and is not "
          "used (set model.rope_scaling to use one)",
          run_.config.model.max_positions, scaling->original_max_positions);
  std::int64_t held_out = 0;
  for (const ValidationSet& set : run_.data->validation()) held_out += set.size();
  log_info("data: {}, sequences of {} tokens, {} held-out samples",
           run_.data->tokenizer().description(), run_.config.data.sequence_length, held_out);
  for (const RunData::Source& source : run_.data->sources()) {
    log_info("  {}: {} tokens in {} shard{}, {:.2f} % of the run, {:.2f} epochs", source.name,
             format_count(static_cast<double>(source.train.tokens())), source.shards.size(),
             source.shards.size() == 1 ? "" : "s", 100 * source.share, source.epochs);
    if (const auto& packing = source.packing)
      log_info("    packed: {} samples, {:.2f} % padding, {} whole, {} cut", packing->samples,
               100 * packing->padding(run_.config.data.sequence_length),
               format_number(packing->whole, "document"), packing->cut);
  }
  if (!tasks.empty()) log_info("tasks: {}", tasks);
  const BatchConfig& batch = run_.config.batch;
  log_info("step: {} sequences = {} tokens in {}; {} steps{}", batch.global,
           format_count(static_cast<double>(batch.global * run_.config.data.sequence_length)),
           micro_batches_text(batch, run_.config.layout.micro_batch), run_.schedule.total_steps,
           run_.config.stages.empty() ? " in all" : " in this stage");
  if (batch.ramp.on())
    log_info("  ramp: {} sequences at first, {} more at equal intervals over {} samples",
             batch.ramp.start, batch.ramp.increment, batch.ramp.samples);
  log_info("layout: {}", describe_layout(run_.config, run_.groups.grid));
  log_info(
      "FLOPs per token: {}FLOP (causal attention), {}FLOP (full attention); peak {}FLOP/s ({})",
      format_si(flops_.causal()), format_si(flops_.full()), format_si(peak_.flops_per_s),
      peak_.source);
  if (run_.is_first())
    log_info("{}", run_.energy != nullptr ? run_.energy->description() : "energy: not metered");
}

// Before the first step only the FLOPs are known; the MFU is assumed.
void ProgressReport::estimate_duration() const {
  const double tokens = run_.config.total_tokens();
  const double fastest_s = tokens * flops_.causal() / (peak_.flops_per_s * run_.groups.ranks());
  log_info(
      "duration: {} tokens in {} steps, {}FLOP; {} at the full peak of {}, {} at an assumed MFU of "
      "{:.0f} %, without validation and checkpoints",
      format_count(tokens), run_.schedule.total_steps, format_si(tokens * flops_.causal()),
      format_duration(fastest_s), format_number(run_.groups.ranks(), "rank"),
      format_duration(fastest_s / kAssumedMfu), 100 * kAssumedMfu);
}

void ProgressReport::write_layout() const {
  std::vector<std::string> nodes = texts_at_first(run_.host(), node_name());
  if (!run_.is_first()) return;
  try {
    run_.log->files().write_layout(layout_json({.config = run_.config,
                                                .grid = run_.groups.grid,
                                                .arena = run_.engine->arena(),
                                                .backend = run_.backend,
                                                .nodes = std::move(nodes)}));
  } catch (const std::exception& error) {  // a viewer can do without it
    log_warning("layout.json was not written: {}", error.what());
  }
}

void ProgressReport::begin_steps() {
  double later = 0;
  for (std::size_t i = static_cast<std::size_t>(run_.config.stage) + 1;
       i < run_.config.stages.size(); ++i) {
    const StageConfig& stage = run_.config.stages[i];
    later += stage.total_tokens() *
             training_flops_per_token(stage.model, stage.data.sequence_length).causal();
  }
  later_flops_ = later;
  last_report_ = begin_ = Clock::now();
}

void ProgressReport::note_step() {
  StepRecord& record = run_.record;
  check_peak();
  record.mfu_causal = mfu(record.tokens_per_s, flops_.causal());
  record.mfu_full = mfu(record.tokens_per_s, flops_.full());
  step_seconds_ += record.step_time_s;
}

// Later stages are assumed to run at the FLOP/s of this one.
double ProgressReport::eta_s() const {
  // By samples: the steps of a batch ramp grow.
  const auto done = static_cast<double>(run_.state.samples - run_.before.samples);
  double left = static_cast<double>(run_.batches.first_sample(run_.schedule.last_step() + 1) -
                                    run_.state.samples);
  left += later_flops_ / (static_cast<double>(run_.config.data.sequence_length) * flops_.causal());
  return left * step_seconds_ / std::max(done, 1.0);
}

std::optional<double> ProgressReport::mfu(double tokens_per_s, double flops_per_token) const {
  if (!peak_is_known_) return {};
  return tokens_per_s * flops_per_token / (peak_.flops_per_s * run_.groups.ranks());
}

// A step that is faster than the measured peak shows that the peak, and so every MFU, is wrong.
void ProgressReport::check_peak() {
  const auto utilization = mfu(run_.record.tokens_per_s, flops_.causal());
  if (!utilization || *utilization <= 1) return;
  peak_is_known_ = false;
  if (!run_.is_first()) return;
  log_info(
      "step {} reached {}FLOP/s per rank, more than the peak of {}FLOP/s ({}): other work "
      "disturbed the measurement of the peak, so MFU is no longer reported",
      run_.record.step, format_si(*utilization * peak_.flops_per_s), format_si(peak_.flops_per_s),
      peak_.source);
}

std::string ProgressReport::progress_line() const {
  const double rate = means_.tokens_per_s();
  const auto causal = mfu(rate, flops_.causal()), full = mfu(rate, flops_.full());
  const std::string stage =
      run_.config.stages.empty()
          ? ""
          : fmt::format("{}/{} ", run_.config.stage + 1, run_.config.stages.size());
  std::string skipped;
  if (means_.skipped() > 0)
    skipped = fmt::format("  skipped {} of {}", means_.skipped(), means_.steps());
  if (means_.outliers() > 0) skipped += fmt::format(" ({} as outliers)", means_.outliers());
  std::string scalars;
  for (std::size_t i = 0; i < run_.record.scalars.size(); ++i)
    if (const DeclaredScalar& one = *run_.record.scalars[i].of; !one.label.empty())
      scalars += fmt::format("  {} {:.{}f}", one.label, means_.scalar(i), one.digits);
  std::string joules_per_token = "–";
  if (const auto joules = means_.joules_per_token())
    joules_per_token = fmt::format("{:.3g} ({})", *joules, run_.record.energy_scope);
  return fmt::format(
      "{}step {:>6}/{}  loss {:.4f}{}  {} tokens/s  {:.3g} s/step  ETA {}  MFU {}  norm {:.3f}  "
      "lr {:.2e}{}  J/token {}",
      stage, run_.state.step, run_.last_step(), means_.loss(), scalars, format_count(rate),
      means_.step_time_s(), format_duration(eta_s()),
      causal ? fmt::format("{:.1f} % ({:.1f} % full)", 100 * *causal, 100 * *full) : "–",
      means_.gradient_norm(), run_.record.lr, skipped, joules_per_token);
}

void ProgressReport::write_status(const RunState& state, double eta_s) const {
  if (!run_.is_first()) return;
  run_.log->status(state, run_.record, validation_.last_loss(), eta_s, run_.checkpoints.last);
  if (state.state != "running")
    energy_.write(state.state == "finished" || state.state == "stopped");
}

// After the last step of the stage, or a stop.
void ProgressReport::report_stop(bool stopped) {
  if (run_.is_first()) run_.stops.consume_file();
  const bool stage_only = !stopped && run_.config.steps_after() > 0;
  if (stage_only && run_.is_first()) run_.log->goodput().note_stage_end();
  if (!stopped)
    return write_status(
        stage_only ? RunState{} : RunState{.state = "finished", .exit_code = exit_code::kFinished},
        eta_s());
  const std::string message =
      fmt::format("stopped by {} after step {}; {}", run_.stops.description(), run_.state.step,
                  run_.config.train.save ? "the same command continues the run"
                                         : "nothing was saved (train.save is false)");
  write_status({"stopped", exit_code::kStopped, run_.stops.reason(), message}, eta_s());
  log_info("{}", message);
}

void ProgressReport::report(bool last) {
  const auto now = Clock::now();
  const bool live_due = now - last_report_ > std::chrono::milliseconds(200);
  if (live_due || last) write_status({}, eta_s());
  if (live_due) last_report_ = now;
  const bool line_due = run_.due(run_.config.train.log_every) || last;
  const bool shown = terminal_is_live() && (live_due || last);
  if (!line_due && !shown) return;
  const std::string line = progress_line();
  if (line_due) means_.clear();
  if (terminal_is_live()) {
    if (line_due) log_to_file(line);
    if (!shown) return;
    const int filled = static_cast<int>(10 * run_.state.step / run_.last_step());
    std::string bar;
    for (int i = 0; i < 10; ++i) bar += i < filled ? "━" : "╌";
    show_live_line(bar + " " + line);
  } else if (line_due) {
    log_info("{}", line);
  }
}

}  // namespace kintsugi
