// The log output of a run: at its start, in a preview, and during training.
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/exchange.h"
#include "comm/launch_environment.h"
#include "core/exit_code.h"
#include "core/log.h"
#include "core/units.h"
#include "model/fp8.h"
#include "parallel/layer_split.h"
#include "train/memory_check.h"
#include "train/records/layout_file.h"
#include "train/trainer.h"

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

void Trainer::announce() const {
  const ModelSize size = count_parameters(ParameterSet(config_.model));
  if (!config_.stages.empty())
    log_info("{}: steps {}-{} of {}", config_.stage_title(), schedule_.first_step + 1,
             schedule_.last_step(), last_step());
  log_info("{}", backend_.description());
  log_info("model: {}{}, {} parameters, {} precision", to_string(config_.model.family),
           config_.model_preset.empty() ? "" : " " + config_.model_preset,
           format_count(static_cast<double>(size.total)), to_string(config_.train.precision));
  if (config_.model.fp8.on()) log_info("{}", fp8_summary(config_.model, config_.layout.tp));
  if (size.trained < size.total)
    log_info("trained: {} parameters ({:.2f} %){}", format_count(static_cast<double>(size.trained)),
             100.0 * static_cast<double>(size.trained) / static_cast<double>(size.total),
             config_.model.lora.on() ? fmt::format(", adapters of rank {}, scale {:g}",
                                                   config_.model.lora.r, config_.model.lora.scale())
                                     : "");
  if (!config_.model_preset.empty() && !config_.model.rope_scaling)
    if (const auto scaling = load_preset(config_.model_preset).rope_scaling;
        scaling && !config_.rope_scaling_given)
      log_info(
          "positions: {}; the preset's rope scaling is only for more than {} positions and is not "
          "used (set model.rope_scaling to use one)",
          config_.model.max_positions, scaling->original_max_positions);
  std::int64_t held_out = 0;
  for (const ValidationSet& set : data_->validation()) held_out += set.size();
  log_info("data: {}, sequences of {} tokens, {} held-out samples",
           data_->tokenizer().description(), config_.data.sequence_length, held_out);
  for (const RunData::Source& source : data_->sources()) {
    log_info("  {}: {} tokens in {} shard{}, {:.2f} % of the run, {:.2f} epochs", source.name,
             format_count(static_cast<double>(source.train.tokens())), source.shards.size(),
             source.shards.size() == 1 ? "" : "s", 100 * source.share, source.epochs);
    if (const auto& packing = source.packing)
      log_info("    packed: {} samples, {:.2f} % padding, {} whole, {} cut", packing->samples,
               100 * packing->padding(config_.data.sequence_length),
               format_number(packing->whole, "document"), packing->cut);
  }
  if (tasks_) log_info("tasks: {}", tasks_->description());
  const BatchConfig& batch = config_.batch;
  log_info("step: {} sequences = {} tokens in {}; {} steps{}", batch.global,
           format_count(static_cast<double>(batch.global * config_.data.sequence_length)),
           micro_batches_text(batch, config_.layout.micro_batch), schedule_.total_steps,
           config_.stages.empty() ? " in all" : " in this stage");
  if (batch.ramp.on())
    log_info("  ramp: {} sequences at first, {} more at equal intervals over {} samples",
             batch.ramp.start, batch.ramp.increment, batch.ramp.samples);
  log_info("layout: {}", describe_layout());
  log_info(
      "FLOPs per token: {}FLOP (causal attention), {}FLOP (full attention); peak {}FLOP/s ({})",
      format_si(flops_.causal()), format_si(flops_.full()), format_si(peak_.flops_per_s),
      peak_.source);
  if (is_first())
    log_info("{}", energy_ != nullptr ? energy_->description() : "energy: not metered");
}

// Before the first step only the FLOPs are known; the MFU is assumed.
void Trainer::preview(bool starts) {
  if (starts && is_first()) preview_start();
  peak_ = backend_.peak_flops(config_.train.precision);
  announce();
  PlanningAllocator nothing;
  const Engine planned(backend_, nothing, engine_options(config_, groups_->ranks()), *groups_);
  log_info("{}", memory_table(planned.arena(), backend_));
  report_snapshot();
  log_info("run directory: {}", directory_.string());
  const double tokens = config_.total_tokens();
  const double fastest_s = tokens * flops_.causal() / (peak_.flops_per_s * groups_->ranks());
  log_info(
      "duration: {} tokens in {} steps, {}FLOP; {} at the full peak of {}, {} at an assumed MFU of "
      "{:.0f} %, without validation and checkpoints",
      format_count(tokens), schedule_.total_steps, format_si(tokens * flops_.causal()),
      format_duration(fastest_s), format_number(groups_->ranks(), "rank"),
      format_duration(fastest_s / kAssumedMfu), 100 * kAssumedMfu);
}

void Trainer::write_layout() {
  std::vector<std::string> nodes = texts_at_first(host(), node_name());
  if (!is_first()) return;
  try {
    log_->files().write_layout(layout_json({.config = config_,
                                            .grid = groups_->grid,
                                            .arena = engine_->arena(),
                                            .backend = backend_,
                                            .nodes = std::move(nodes)}));
  } catch (const std::exception& error) {  // a viewer can do without it
    log_warning("layout.json was not written: {}", error.what());
  }
}

void Trainer::report_snapshot() const {
  if (!config_.train.save || !config_.train.async_save) return;
  log_info("  {:<14}{:>12}  of host memory, to save in the background (train.async_save){}",
           "snapshot", format_bytes(static_cast<double>(snapshot_plan_.bytes)),
           snapshot_plan_.fits()
               ? ""
               : fmt::format("; {} is free, so training stops during saves",
                             format_bytes(static_cast<double>(snapshot_plan_.available))));
}

std::string Trainer::describe_layout() const {
  const Grid& grid = groups_->grid;
  const Layout& layout = config_.layout;
  std::string text =
      fmt::format("{} = tp {} × cp {} × dp {} × pp {}", format_number(grid.world(), "rank"),
                  grid.tp, grid.cp, grid.dp, grid.pp);
  if (layout.sequence_parallel) text += ", sequence parallel";
  text += fmt::format(
      ", ZeRO {}{}", layout.zero,
      layout.shard_group > 0 ? fmt::format(" in groups of {}", layout.shard_group) : "");
  text += fmt::format("; {} per rank and step",
                      micro_batches_text(config_.batch, grid.dp * layout.micro_batch));
  if (grid.pp > 1)
    text += fmt::format(
        ", schedule {}, layers {}", to_string(layout.schedule),
        fmt::join(checked_split(config_.model, grid.pp * layout.chunks, layout.split), ","));
  return text;
}

// Later stages are assumed to run at the FLOP/s of this one.
double Trainer::eta_s() const {
  // By samples: the steps of a batch ramp grow.
  const auto done = static_cast<double>(state_.samples - before_.samples);
  double left =
      static_cast<double>(batches_.first_sample(schedule_.last_step() + 1) - state_.samples);
  left += later_flops_ / (static_cast<double>(config_.data.sequence_length) * flops_.causal());
  return left * step_seconds_ / std::max(done, 1.0);
}

double Trainer::flops_of_later_stages() const {
  double flops = 0;
  for (std::size_t i = static_cast<std::size_t>(config_.stage) + 1; i < config_.stages.size();
       ++i) {
    const RunConfig& later = config_.stages[i];
    flops += later.total_tokens() *
             training_flops_per_token(later.model, later.data.sequence_length).causal();
  }
  return flops;
}

std::string Trainer::progress_line() const {
  const double rate = means_.tokens_per_s();
  const auto causal = mfu(rate, flops_.causal()), full = mfu(rate, flops_.full());
  const std::string stage =
      config_.stages.empty() ? "" : fmt::format("{}/{} ", config_.stage + 1, config_.stages.size());
  std::string skipped;
  if (means_.skipped() > 0)
    skipped = fmt::format("  skipped {} of {}", means_.skipped(), means_.steps());
  if (means_.outliers() > 0) skipped += fmt::format(" ({} as outliers)", means_.outliers());
  std::string rewards;
  if (preference())
    rewards = fmt::format("  margin {:.4f}  accuracy {:.3f}", means_.reward_margin(),
                          means_.reward_accuracy());
  std::string joules_per_token = "–";
  if (const auto joules = means_.joules_per_token())
    joules_per_token = fmt::format("{:.3g} ({})", *joules, record_.energy_scope);
  return fmt::format(
      "{}step {:>6}/{}  loss {:.4f}{}  {} tokens/s  {:.3g} s/step  ETA {}  MFU {}  norm {:.3f}  "
      "lr {:.2e}{}  J/token {}",
      stage, state_.step, last_step(), means_.loss(), rewards, format_count(rate),
      means_.step_time_s(), format_duration(eta_s()),
      causal ? fmt::format("{:.1f} % ({:.1f} % full)", 100 * *causal, 100 * *full) : "–",
      means_.gradient_norm(), record_.lr, skipped, joules_per_token);
}

void Trainer::write_status(const RunState& state, double eta_s) {
  if (!is_first()) return;
  log_->status(state, record_, last_valid_loss_, eta_s, last_checkpoint_);
  if (state.state != "running") write_energy(state.state == "finished" || state.state == "stopped");
}

void Trainer::watch_for_stops() {
  StopRequests::Options options{.file = directory_ / "stop"};
  const double limit_s = config_.run.time_limit.seconds;
  if (const auto end = end_of_job(startup_.launched_s(), limit_s)) {
    // From here on by the steady clock: setting the system's clock must not stop the run.
    const double now_s = StopRequests().now_s();
    options.wall_time = WallTime(now_s + *end - unix_time_s(), config_.run.stop_margin.seconds);
    // Of an earlier attempt or stage, until this one has saved.
    if (const auto save_s = last_save_time(directory_)) options.wall_time.note_save(*save_s);
  }
  stops_ = StopRequests(std::move(options));
}

void Trainer::check_time_left() {
  WallTime& wall_time = stops_.wall_time();
  if (!wall_time.limited()) return;
  const double left_s = wall_time.left_s(stops_.now_s()), margin_s = wall_time.margin_s();
  if (left_s > margin_s)
    log_info("wall time: {} left; the run saves and stops {} before the end",
             format_duration(left_s), format_duration(margin_s));
  else
    log_warning(
        "the wall time leaves {}, less than the {} that the last save and the exit may take: the "
        "run stops without training; give the job more time or set run.stop_margin",
        format_duration(std::max(left_s, 0.0)), format_duration(margin_s));
}

// After the last step of the stage, or a stop.
void Trainer::report_stop(bool stopped) {
  if (is_first()) stops_.consume_file();
  const bool stage_only = !stopped && config_.steps_after() > 0;
  if (stage_only && is_first()) log_->goodput().note_stage_end();
  if (!stopped)
    return write_status(
        stage_only ? RunState{} : RunState{.state = "finished", .exit_code = exit_code::kFinished},
        eta_s());
  const std::string message =
      fmt::format("stopped by {} after step {}; {}", stops_.description(), state_.step,
                  config_.train.save ? "the same command continues the run"
                                     : "nothing was saved (train.save is false)");
  write_status({"stopped", exit_code::kStopped, stops_.reason(), message}, eta_s());
  log_info("{}", message);
}

void Trainer::report(bool last) {
  const auto now = Clock::now();
  const bool live_due = now - last_report_ > std::chrono::milliseconds(200);
  if (live_due || last) write_status({}, eta_s());
  if (live_due) last_report_ = now;
  const bool line_due = due(config_.train.log_every) || last;
  const bool shown = terminal_is_live() && (live_due || last);
  if (!line_due && !shown) return;
  const std::string line = progress_line();
  if (line_due) means_.clear();
  if (terminal_is_live()) {
    if (line_due) log_to_file(line);
    if (!shown) return;
    const int filled = static_cast<int>(10 * state_.step / last_step());
    std::string bar;
    for (int i = 0; i < 10; ++i) bar += i < filled ? "━" : "╌";
    show_live_line(bar + " " + line);
  } else if (line_due) {
    log_info("{}", line);
  }
}

}  // namespace kintsugi
