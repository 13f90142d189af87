#include "cli/plan/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/backends.h"
#include "core/table.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "energy/carbon.h"
#include "model/model_fields.h"
#include "parallel/schedule_timing.h"
#include "plan/search/interval.h"

namespace kintsugi {

std::string in_days(double days) {
  return days >= 1 ? fmt::format("{:.1f} days", days) : format_duration(days * 86400);
}
std::string tokens_text(double tokens) {
  return fmt::format("{} {}", format_count(tokens), tokens == 1 ? "token" : "tokens");
}

std::string carbon_text(const std::optional<double>& tonnes,
                        const std::optional<double>& market_tonnes) {
  if (!tonnes && !market_tonnes) return "";
  if (!market_tonnes) return mass_text(1000 * *tonnes) + " CO2e";
  const std::string market = mass_text(1000 * *market_tonnes);
  if (!tonnes) return market + " CO2e market-based";
  return fmt::format("{} CO2e location-based, {} market-based", mass_text(1000 * *tonnes), market);
}

std::string energy_text(const RunEnergy& e, const Machine& machine) {
  std::string text = energy_text(from_mwh(e.gpu_mwh)) + " in GPUs";
  if (e.node_mwh) text += fmt::format(", {} in nodes", energy_text(from_mwh(*e.node_mwh)));
  if (e.facility_mwh) text += fmt::format(", {} with PUE", energy_text(from_mwh(*e.facility_mwh)));
  if (!e.missing.empty())
    text += fmt::format(" (the rest is unknown: {} has no {})", machine.name, e.missing);
  return text;
}

namespace {

std::string kilojoule(double joule) {
  return joule < 1e4 ? fmt::format("{:.3g}", joule / 1e3) : fmt::format("{:.1f}", joule / 1e3);
}

// The peak that an MFU is relative to: with fp8 that of bf16, so that runs can be compared.
std::string peak_text(const PlanJob& job, const Machine& machine) {
  const std::string peak = fmt::format("{:.4g} TFLOP/s", machine.gpu.tflops(job.precision));
  if (!job.model.fp8.on()) return peak;
  return fmt::format("that of {}, {} (fp8: {:.4g}), and matmuls are in fp8 {}",
                     to_string(job.precision), peak, machine.gpu.fp8_tflops,
                     fp8_yaml(job.model.fp8));
}

// How many spare nodes to have, and how many of them there are.
std::string spares_text(const RunFailures& lost) {
  std::string text = fmt::format("Spare nodes that suffice until repairs in {:.0f} % of cases: {}",
                                 100 * kSpareChance, lost.spare_nodes);
  if (lost.spares_there == 0) return text + "; the machine has no more nodes";
  if (lost.spares_there < lost.spare_nodes)
    text += fmt::format("; the machine has only {} more", lost.spares_there);
  return text;
}

// How often to save, and how many spare nodes to have.
std::string advice_text(const RunFootprint& f) {
  const RunFailures& lost = *f.failures;
  std::string text =
      fmt::format(" Checkpoints every {}", format_number(f.checkpoint_every, "step"));
  text += f.checkpoint_every == lost.best_every
              ? " cost least."
              : fmt::format("; {} would cost least.", lost.best_every);
  if (lost.spare_nodes == 0) return text;
  return text + " " + spares_text(lost) + ".";
}

// What the time of a checkpoint comes from.
std::string rate_text(const StorageRate& storage) {
  if (storage.gb_s == 0) return "by --save-time";
  return fmt::format("at {}{:.3g} GB/s", storage.assumed ? "an assumed " : "", storage.gb_s);
}

// Why failures are not counted, and which option counts them. The dry run has none, and says so for
// every machine: a configuration that was planned with failures looks like any other.
std::string no_failures_text(const RunFootprint& f, const Machine& machine, PrintedBy command) {
  std::string why;
  if (machine.node.mtbf_h > 0)
    why = f.checkpoint_s ? "the run saves no checkpoints" : "the time of a checkpoint is not known";
  else if (command == PrintedBy::DryRun)
    why = machine.name + " has no node.mtbf_h";
  if (why.empty()) return "";
  const char* option = machine.node.mtbf_h == 0 ? "--node-mtbf"
                       : f.checkpoint_s         ? ""
                                                : "--save-time";
  if (command == PrintedBy::DryRun && *option != 0)
    why += fmt::format(" (kintsugi plan --config counts them with {})", option);
  else if (*option != 0)
    why += fmt::format(" ({})", option);
  return fmt::format("\nFailures of nodes are not counted: {}.", why);
}

std::string run_line(const RunFootprint& f, const Machine& machine,
                     PrintedBy command = PrintedBy::Plan) {
  std::string text = footprint_text(f, machine);
  text += fmt::format("; each checkpoint has {}", format_bytes(f.checkpoint_gb * 1e9));
  if (f.checkpoint_s)
    text += fmt::format(" and takes {} {}", format_duration(*f.checkpoint_s), rate_text(f.storage));
  if (!f.checkpoint_s) text += " (its time is not counted: the machine has no storage_gb_s)";
  if (f.checkpoint_s && f.checkpoints > 0)
    text += fmt::format(" ({:.0f} checkpoints: {}, included above)", f.checkpoints,
                        format_duration(f.checkpoints * *f.checkpoint_s));
  text += f.failures ? "\n" + failures_text(*f.failures) + advice_text(f)
                     : no_failures_text(f, machine, command);
  return text + "\n";
}

// What was assumed of the routers.
std::string imbalance_text(const PlanJob& job, PrintedBy command = PrintedBy::Plan) {
  if (!job.model.experts) return "";
  if (job.imbalance == 1) return " All experts are chosen alike (--imbalance 1).";
  return fmt::format(" The busiest expert computes {:.3g} times the mean ({}--imbalance).",
                     job.imbalance,
                     command == PrintedBy::DryRun ? "assumed; kintsugi plan --config has " : "");
}

std::string unmeasured_text(const Machine& machine) {
  if (!machine.assumes("gpu.gemm_efficiency")) return "";
  return fmt::format(" The efficiency of {} is assumed: errors may be larger.", machine.gpu.name);
}

constexpr const char* kPlusMinus =
    "±: 90 % of measured rows of the same kind were as near to their prediction";

// What ± and = mean in the table.
std::string interval_legend(const SearchResult& result, const Planner& planner) {
  const auto equals = std::count_if(
      result.best.begin() + 1, result.best.end(),
      [&](const Evaluation& e) { return !told_apart(planner, e, result.best.front()); });
  return fmt::format(
      "{}; it holds for kJ/step too.{}{}{}\n", kPlusMinus,
      result.risk ? " The layouts are ordered by the upper end." : "",
      equals > 0 ? " =: its difference to the first layout is within the error of differences."
                 : "",
      unmeasured_text(planner.machine()));
}

// Memory of the ranks of each stage, without context and libraries (own_gb).
Table stage_table(const std::vector<RegionBytes>& memory, bool whole) {
  std::vector<Column> columns = {Column::number("stage")};
  const auto gib = [](double bytes) { return fmt::format("{:.3f}", bytes / (1 << 30)); };
  for (int region = 0; region < kRegions; ++region) {
    const std::string name(to_string(static_cast<Region>(region)));
    columns.push_back(Column::number(name, name, gib));
  }
  columns.push_back(Column::number("total", "all", gib));
  Table table(std::move(columns));
  for (std::size_t stage = 0; stage < memory.size(); ++stage) {
    // In a long pipeline the memory of the middle stages changes linearly.
    if (!whole && memory.size() > 12 && stage > 2 && stage + 3 < memory.size()) continue;
    std::vector<Cell> cells = {stage};
    for (const std::int64_t bytes : memory[stage]) cells.push_back(bytes);
    cells.push_back(total(memory[stage]));
    table.add(std::move(cells));
  }
  return table;
}

// A smaller pipeline of the same kind that fits on a screen.
struct ShownPipeline {
  PipelineSchedule schedule;
  PipelineTiming timing;
};
ShownPipeline shown_pipeline(const PlanJob& job, const Layout& l) {
  const int stages = std::min(l.pp, 16);
  const auto shown =
      static_cast<int>(std::min<std::int64_t>(micro_batches_per_step(l, job.batch), 2 * stages));
  PipelineSchedule schedule = make_pipeline_schedule({l.schedule, stages, shown, l.chunks});
  const double forward = 1.0 / l.chunks;
  PipelineTiming timing = simulate_pipeline(
      schedule, {.forward = forward, .backward_input = forward, .backward_weight = forward});
  return {std::move(schedule), std::move(timing)};
}

}  // namespace

std::string footprint_text(const RunFootprint& f, const Machine& machine) {
  std::string text =
      fmt::format("{}, {}, {} GPU-hours; {}", format_number(std::llround(f.steps), "step"),
                  in_days(f.days), format_count(f.gpu_hours), energy_text(f.energy, machine));
  if (const std::string co2 = carbon_text(f.energy.tonnes_co2, f.energy.tonnes_co2_market);
      !co2.empty())
    text +=
        fmt::format("; {}{}", co2, f.energy.missing.empty() ? "" : " for the " + f.energy.co2_of);
  if (f.euro) text += fmt::format("; {} EUR", format_count(*f.euro));
  return text + fmt::format("; days, energy and cost {} from the step time alone",
                            interval_text(f.within));
}

std::string scaling_legend(const Machine& machine) {
  return fmt::format("{}; it holds for all columns of the row except the efficiency.{}\n",
                     kPlusMinus, unmeasured_text(machine));
}

std::string legend(const std::vector<Evaluation>& rows) {
  const auto any = [&](const auto& has) { return std::any_of(rows.begin(), rows.end(), has); };
  const auto layout = [&](const auto& has) {
    return any([&](const Evaluation& e) { return has(e.layout); });
  };
  std::string text =
      "accum: micro-batches per step, of micro sequences each. tp, pp, dp: tensor, pipeline and "
      "data parallel ranks";
  const auto add = [&](bool given, const char* form) {
    if (given) text += fmt::format("; {}", form);
  };
  add(layout([](const Layout& l) { return l.cp > 1; }), "cp: context parallel ranks");
  add(layout([](const Layout& l) { return l.context == ContextMethod::Ulysses; }),
      "ulysses: these share the heads of attention");
  add(layout([](const Layout& l) { return l.ep > 0; }), "ep: ranks that share experts");
  add(layout([](const Layout& l) { return l.chunks > 1; }), "chunks: stages per pipeline rank");
  add(layout([](const Layout& l) { return l.zero > 0; }),
      "zero1: optimizer state is sharded, zero2: and gradients, zero3: and weights");
  add(layout([](const Layout& l) { return l.shard_group > 0; }),
      "zeroN/R: over R ranks, not all data ranks");
  add(layout([](const Layout& l) { return l.sequence_parallel; }), "sp: sequence parallel");
  add(layout([](const Layout& l) { return l.recompute_every > 1; }),
      "recompute-full/N: in every Nth layer");
  add(any([](const Evaluation& e) { return e.offload.on; }),
      "offload-optimizer: its state is in host memory");
  add(any([](const Evaluation& e) { return e.offload.gradients; }),
      "offload-gradients: the gradients too");
  return text + ".\n";
}

std::string failures_text(const RunFailures& lost) {
  std::string text = fmt::format(
      "Failures: a node every {}, {:.1f} in all, cost {} of training that is done again, {} of "
      "restarts",
      format_duration(lost.mtbf_s), lost.failures, format_duration(lost.lost_s),
      format_duration(lost.restarts_s));
  if (lost.spares_there > 0)
    text += fmt::format(" and {} idle", format_number(lost.spares_there, "spare node"));
  text += fmt::format(": {} GPU-hours, {} in {}", format_count(lost.gpu_hours),
                      energy_text(from_mwh(lost.mwh)), lost.mwh_of);
  if (lost.euro) text += fmt::format(", {} EUR", format_count(*lost.euro));
  return text + " (included above).";
}

std::string pipeline_svg(const PlanJob& job, const Layout& layout) {
  const ShownPipeline pipeline = shown_pipeline(job, layout);
  return schedule_svg(pipeline.schedule, pipeline.timing);
}

std::string undriven_note(const Machine& machine) {
  const std::string why = why_undriven(machine);
  if (why.empty()) return "";
  return fmt::format("Note: {}. The figures are for a program that can.\n", why);
}

std::string best_table(const SearchResult& result, const Planner& planner, double tokens,
                       RankBy rank_by) {
  std::string text =
      fmt::format("{:>4}{:>10}{:>8}{:>7}{:>10}{:>12} {:<5}{:>8}{:>8}{:>8}{:>9}{:>10}  {}\n", "",
                  "memory", "batch", "accum", "step s", "tok/s/GPU", "±", "MFU %", "full %",
                  "bubble", "exposed", "kJ/step", "layout");
  int number = 0;
  for (const Evaluation& e : result.best)
    text += fmt::format(
        "{:>3}{}{:>10}{:>8}{:>7}{:>10.3f}{:>12.1f} {:<5}{:>8.2f}{:>8.2f}{:>7.1f}%{:>8.1f}%{:>10}"
        "  {}\n",
        ++number,
        &e == &result.best.front() || told_apart(planner, e, result.best.front()) ? " " : "=",
        format_bytes(e.memory_bytes), planner.job().batch,
        micro_batches_per_step(e.layout, planner.job().batch), e.step_s, e.tokens_per_s_per_gpu,
        interval_of(planner, e).short_text(), 100 * e.mfu_causal, 100 * e.mfu_full, 100 * e.bubble,
        100 * e.exposed_s() / e.step_s, kilojoule(e.node_joule), to_string(e));
  text += fmt::format(
      "{}, {} fit into {}. Memory of the fullest rank, with {} for context and libraries. MFU % "
      "counts "
      "causal attention half, full % in full; the peak is {}. kJ/step is the energy of {}{}.{}\n",
      format_number(result.layouts, "layout"), result.fitting, planner.machine().gpu.memory_text(),
      format_bytes(planner.machine().gpu.own_gb * 1e9), peak_text(planner.job(), planner.machine()),
      planner.machine().node.host_w < 0
          ? fmt::format("GPUs alone ({} has no node.host_w)", planner.machine().name)
          : "nodes without PUE",
      rank_by == RankBy::Energy ? ", and the layouts are ordered by it" : "",
      imbalance_text(planner.job()));
  if (!result.best.empty()) text += interval_legend(result, planner);
  text += legend(result.best);
  if (tokens > 0 && !result.best.empty())
    text += fmt::format(
        "{} with the first layout: {}", tokens_text(tokens),
        run_line(footprint_of(result.best.front(), planner.job(), planner.machine(), tokens),
                 planner.machine()));
  return text;
}

std::string misses_table(const SearchResult& result) {
  if (result.misses.empty()) return "";
  std::string text = "Near misses:\n";
  for (const SearchResult::Miss& miss : result.misses)
    text += fmt::format("  {:<60} {}\n", to_string(miss.evaluation), miss.reason);
  return text;
}

std::string explained(Planner& planner, const Evaluation& e, double tokens, PrintedBy command) {
  const Layout& l = e.layout;
  std::string text =
      fmt::format("{}\n\nMemory per rank, GiB:\n{}", to_string(e),
                  stage_table(planner.memory(l, e.offload), false).text({.indent = 2}));
  text += fmt::format("With {} for context and libraries, the fullest rank needs {} (stage {}).\n",
                      format_bytes(planner.machine().gpu.own_gb * 1e9),
                      format_bytes(e.memory_bytes), e.fullest_stage);
  if (e.host_bytes > 0)
    text += fmt::format("A rank offloads {} to host memory.\n", format_bytes(e.host_bytes));
  return text + explained_time(planner, e, tokens, command);
}

std::string explained_time(const Planner& planner, const Evaluation& e, double tokens,
                           PrintedBy command) {
  const Layout& l = e.layout;
  std::string text;
  const auto line = [&](const char* name, double seconds) {
    return fmt::format("  {:<34}{:>10.4f} s{:>7.1f} %\n", name, seconds, 100 * seconds / e.step_s);
  };
  if (const std::string assumed = imbalance_text(planner.job(), command); !assumed.empty())
    text += assumed.substr(1) + "\n";
  text += "\nOne step:\n" + line("compute (slowest stage)", e.ideal_s) +
          line("pipeline bubble", e.bubble * e.step_s) +
          line("exposed communication, tp, cp, ep", e.tensor_s) +
          line("exposed communication, dp", e.data_s) +
          line("exposed communication, pp", e.message_s) +
          (e.host_bytes > 0 ? line("exposed copies of offloaded data", e.offload_s) : "") +
          line("optimizer", e.optimizer_s) + line("data loading, logging", e.other_s) +
          line("total", e.step_s);
  const StepInterval& interval = interval_of(planner, e);
  text += fmt::format("Nine of ten times {:.3f} to {:.3f} s ({}: {}, from {} measured rows).{}\n",
                      e.step_s / interval.within, e.step_s * interval.within, interval.text(),
                      YamlScalar<StepKind>::format(interval.kind), interval.rows,
                      unmeasured_text(planner.machine()));
  text += fmt::format("\n{:.1f} tokens/s/GPU{}, {} kJ per step in GPUs", e.tokens_per_s_per_gpu,
                      planner.job().model.fp8.on()
                          ? fmt::format(" in fp8 {}", fp8_yaml(planner.job().model.fp8))
                          : "",
                      kilojoule(e.gpu_joule));
  text += planner.machine().node.host_w < 0
              ? fmt::format(" ({} has no node.host_w)\n", planner.machine().name)
              : fmt::format(", {} in nodes\n", kilojoule(e.node_joule));
  if (tokens > 0)
    text += fmt::format("{}: {}", tokens_text(tokens),
                        run_line(footprint_of(e, planner.job(), planner.machine(), tokens),
                                 planner.machine(), command));
  if (l.pp > 1) {
    const ShownPipeline pipeline = shown_pipeline(planner.job(), l);
    text += fmt::format("\nPipeline, drawn with {} of {} stages and {} of {} micro-batches:\n{}",
                        pipeline.schedule.shape.stages, l.pp, pipeline.schedule.shape.micro_batches,
                        micro_batches_per_step(l, planner.job().batch),
                        draw_schedule(pipeline.schedule, pipeline.timing));
  }
  return text;
}

namespace {

nlohmann::ordered_json to_json(const Layout& l, bool experts) {
  nlohmann::ordered_json layout = {{"tp", l.tp},
                                   {"cp", l.cp},
                                   {"pp", l.pp},
                                   {"dp", l.dp},
                                   {"chunks", l.chunks},
                                   {"schedule", to_string(l.schedule)},
                                   {"micro", l.micro_batch},
                                   {"zero", l.zero},
                                   {"shard_group", l.shard_group},
                                   {"sequence_parallel", l.sequence_parallel},
                                   {"recompute", to_string(l.recompute)},
                                   {"recompute_every", l.recompute_every}};
  if (l.cp > 1) layout.update({{"context", to_string(l.context)}});
  if (experts) layout.update({{"ep", std::max(l.ep, l.tp)}, {"dispatch", to_string(l.dispatch)}});
  return layout;
}

// `experts`: whether the model has some.
nlohmann::ordered_json to_json(const Evaluation& e, const Machine& machine, bool experts) {
  return {{"layout", to_json(e.layout, experts)},
          {"offload", {{"optimizer", e.offload.on}, {"gradients", e.offload.gradients}}},
          {"fits", e.fits},
          {"host_memory_bytes", std::llround(e.host_bytes)},
          {"memory_bytes", std::llround(e.memory_bytes)},
          {"fullest_stage", e.fullest_stage},
          {"step_time_s", e.step_s},
          {"tokens_per_s_per_gpu", e.tokens_per_s_per_gpu},
          {"mfu_causal", e.mfu_causal},
          {"mfu_full", e.mfu_full},
          {"bubble", e.bubble},
          {"computing_s", e.ideal_s},
          {"tensor_wait_s", e.tensor_s},
          {"data_wait_s", e.data_s},
          {"message_wait_s", e.message_s},
          {"offload_wait_s", e.offload_s},
          {"optimizer_s", e.optimizer_s},
          {"gpu_energy_j", e.gpu_joule},
          {"node_energy_j", machine.node.host_w < 0 ? nlohmann::ordered_json(nullptr)
                                                    : nlohmann::ordered_json(e.node_joule)}};
}

nlohmann::ordered_json interval_json(const StepInterval& interval, double step_s,
                                     const Machine& machine) {
  return {{"level", 0.9},
          {"kind", YamlScalar<StepKind>::format(interval.kind)},
          {"factor", interval.within},
          {"step_time_low_s", step_s / interval.within},
          {"step_time_high_s", step_s * interval.within},
          {"efficiency_assumed", machine.assumes("gpu.gemm_efficiency")}};
}

nlohmann::ordered_json run_json(const RunFootprint& f, double tokens) {
  nlohmann::ordered_json run = {{"tokens", std::llround(tokens)},
                                {"steps", std::llround(f.steps)},
                                {"days", f.days},
                                {"gpu_hours", f.gpu_hours},
                                {"gpu_mwh", f.energy.gpu_mwh},
                                {"node_mwh", Cell(f.energy.node_mwh).value},
                                {"facility_mwh", Cell(f.energy.facility_mwh).value},
                                {"checkpoints", std::llround(f.checkpoints)},
                                {"checkpoint_every", f.checkpoint_every}};
  if (f.failures)
    run["failures"] = {{"run_mtbf_s", f.failures->mtbf_s},
                       {"failures", f.failures->failures},
                       {"lost_s", f.failures->lost_s},
                       {"restarts_s", f.failures->restarts_s},
                       {"gpu_hours", f.failures->gpu_hours},
                       {"mwh", f.failures->mwh},
                       {"mwh_of", f.failures->mwh_of},
                       {"euro", Cell(f.failures->euro).value},
                       {"best_checkpoint_every", f.failures->best_every},
                       {"spare_nodes", f.failures->spare_nodes},
                       {"spare_nodes_available", f.failures->spares_there}};
  if (f.checkpoint_s) {
    run["checkpoint_s"] = *f.checkpoint_s;
    if (f.storage.gb_s > 0) run["storage_gb_s"] = f.storage.gb_s;
    if (f.storage.gb_s > 0) run["storage_assumed"] = f.storage.assumed;
  }
  if (f.energy.tonnes_co2) run["tonnes_co2e"] = *f.energy.tonnes_co2;
  if (f.energy.tonnes_co2_market) run["tonnes_co2e_market"] = *f.energy.tonnes_co2_market;
  if (f.energy.tonnes_co2 || f.energy.tonnes_co2_market) run["tonnes_co2e_of"] = f.energy.co2_of;
  if (f.euro) run["euro"] = *f.euro;
  return run;
}

}  // namespace

std::string search_json(const SearchResult& result, Planner& planner, const SearchRequest& request,
                        double tokens, const std::string& simulated) {
  const PlanJob& job = planner.job();
  const Machine& machine = planner.machine();
  nlohmann::ordered_json best = nlohmann::ordered_json::array(), misses = best;
  for (const Evaluation& e : result.best) {
    best.push_back(to_json(e, machine, request.experts));
    best.back()["accumulation"] = micro_batches_per_step(e.layout, job.batch);
    best.back()["interval"] = interval_json(interval_of(planner, e), e.step_s, machine);
    best.back()["interval"]["equals_best"] = !told_apart(planner, e, result.best.front());
    best.back()["stage_memory_bytes"] =
        stage_table(planner.memory(e.layout, e.offload), true).json();
    if (tokens > 0) best.back()["run"] = run_json(footprint_of(e, job, machine, tokens), tokens);
  }
  for (const SearchResult::Miss& miss : result.misses) {
    misses.push_back(to_json(miss.evaluation, machine, request.experts));
    misses.back()["reason"] = miss.reason;
  }
  const double checkpoint_gb =
      footprint_of(result.best.front(), job, machine, job.tokens()).checkpoint_gb;
  nlohmann::ordered_json root = {{"model", request.model},
                                 {"machine", machine.name},
                                 {"gpu_vendor", YamlScalar<GpuVendor>::format(machine.gpu.vendor)},
                                 {"drives_gpus", Cell(drives_gpus(machine.gpu.vendor)).value},
                                 {"gpus", request.gpus},
                                 {"precision", precision_word(job)},
                                 {"batch", job.batch},
                                 {"sequence_length", job.length},
                                 {"rank_by", request.rank_by},
                                 {"risk", result.risk},
                                 {"energy_of", machine.node.host_w < 0 ? "GPUs" : "nodes"},
                                 {"own_gb", machine.gpu.own_gb},
                                 {"margin", machine.gpu.margin},
                                 {"checkpoint_bytes", std::llround(checkpoint_gb * 1e9)},
                                 {"layouts", result.layouts},
                                 {"fitting", result.fitting},
                                 {"best", best},
                                 {"near_misses", misses}};
  if (job.model.experts) root["imbalance"] = job.imbalance;
  if (job.model.fp8.on()) {
    root["fp8"] = fp8_yaml(job.model.fp8);
    root["mfu_peak_tflops"] = machine.gpu.tflops(job.precision);
  }
  if (request.explain > 0) {
    root["explained"] = best[static_cast<std::size_t>(request.explain) - 1];
    root["explained"]["place"] = request.explain;
  }
  if (!simulated.empty()) root["simulation"] = nlohmann::ordered_json::parse(simulated);
  return json_lines(root);
}

std::string scaling_json(const std::vector<ScalingRow>& rows, const Machine& machine,
                         const SearchRequest& request, double tokens) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ScalingRow& row : rows) {
    nlohmann::ordered_json one = {{"gpus", row.gpus},
                                  {"batch", row.batch},
                                  {"accumulation", row.accumulation},
                                  {"efficiency", row.efficiency}};
    if (const double price = machine.facility.eur_per_gpu_hour; price >= 0)
      one["euro_per_billion_tokens"] = 1e9 / row.evaluation.tokens_per_s_per_gpu / 3600 * price;
    one.update(to_json(row.evaluation, machine, request.experts));
    one["interval"] = interval_json(row.interval, row.evaluation.step_s, machine);
    if (row.run) one["run"] = run_json(*row.run, tokens);
    list.push_back(std::move(one));
  }
  return json_lines({{"model", request.model}, {"machine", machine.name}, {"rows", list}});
}

std::string training_yaml(const Planner& planner, const Evaluation& e, const TrainingInputs& inputs,
                          double tokens) {
  const PlanJob& job = planner.job();
  const Layout& l = e.layout;
  const std::vector<std::string> presets = preset_names();
  const std::string& model = inputs.model;
  const bool preset = std::find(presets.begin(), presets.end(), model) != presets.end();
  const double steps = tokens > 0 ? std::ceil(tokens / job.tokens()) : 1000;
  std::string data = "data:\n";
  if (inputs.data.empty())
    data += "  # FILL IN: corpus.txt is a placeholder for the training data.\n";
  data += fmt::format("  train: [{{path: {}, weight: 1.0}}]\n",
                      yaml_quoted(inputs.data.empty() ? "corpus.txt" : inputs.data));
  if (inputs.tokenizer.empty())
    data +=
        fmt::format("  # FILL IN: the tokenizer for a vocabulary of {}; bytes is a placeholder.\n",
                    job.model.vocab_size);
  data +=
      fmt::format("  tokenizer: {}\n  sequence_length: {}\n",
                  yaml_quoted(inputs.tokenizer.empty() ? "bytes" : inputs.tokenizer), job.length);
  std::string todo =
      tokens > 0 ? "" : "# FILL IN train.steps: 1000 is a placeholder (or plan with --tokens).\n";
  const RunFootprint run = footprint_of(e, job, planner.machine(), tokens);
  if (tokens > 0 && run.failures && run.failures->spare_nodes > 0) {
    const RunFailures& lost = *run.failures;
    if (lost.spares_there < lost.spare_nodes) todo += fmt::format("# {}.\n", spares_text(lost));
    if (lost.spares_there > 0)
      todo += fmt::format("# Launch with --spare-nodes {}.\n", lost.spares_there);
  }
  std::string offload;
  if (e.offload.on)
    offload = fmt::format("offload: {{optimizer: true, gradients: {}, update: device}}\n",
                          e.offload.gradients);
  return fmt::format(
      "# Plan for {} on {}: {}, {:.3f} s per step ({}), {:.1f} tokens/s/GPU, {} of memory per "
      "rank.\n"
      "run: {{dir: runs/{}, seed: 1}}\n"
      "model: {{{}: {}}}\n{}batch: {{global: {}, micro: {}}}\n"
      "optimizer: {{{}lr: 1e-4, min_lr: 1e-5, warmup_steps: {:.0f}}}\n{}train: {{steps: {:.0f}, "
      "precision: {}, {}checkpoint_every: {}}}\n"
      "layout: {}\n{}"
      "device: auto\n",
      yaml_quoted(model), planner.machine().name, format_number(l.ranks(), "rank"), e.step_s,
      interval_of(planner, e).text(), e.tokens_per_s_per_gpu, format_bytes(e.memory_bytes),
      preset ? model : "planned", preset ? "preset" : "config", yaml_quoted(model), data, job.batch,
      l.micro_batch, job.optimizer.kind == OptimizerKind::Muon ? "kind: muon, " : "",
      std::min(2000.0, std::floor(steps / 20)), todo, steps, to_string(job.precision),
      job.model.fp8.on() ? fmt::format("fp8: {}, ", fp8_yaml(job.model.fp8)) : "",
      run.checkpoint_every, to_flow_yaml(l), offload);
}

}  // namespace kintsugi
