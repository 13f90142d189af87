#include "cli/plan_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/units.h"
#include "model/model_fields.h"
#include "parallel/schedule_diagram.h"
#include "parallel/schedule_timing.h"

namespace kintsugi {
namespace {

std::string run_line(const RunFootprint& f) {
  std::string text = fmt::format(
      "{:.0f} steps, {:.1f} days, {} GPU-hours; {:.1f} MWh in GPUs, {:.1f} in nodes, {:.1f} with "
      "the facility",
      f.steps, f.days, format_count(f.gpu_hours), f.gpu_mwh, f.node_mwh, f.facility_mwh);
  if (f.tonnes_co2) text += fmt::format("; {:.2f} t CO2e", *f.tonnes_co2);
  if (f.euro) text += fmt::format("; {} EUR", format_count(*f.euro));
  text += fmt::format("; a checkpoint has {}", format_bytes(f.checkpoint_gb * 1e9));
  if (f.checkpoint_s) text += fmt::format(" and takes {}", format_duration(*f.checkpoint_s));
  if (f.checkpoint_s && f.checkpoints > 0)
    text += fmt::format(", {:.0f} of them {} of the days", f.checkpoints,
                        format_duration(f.checkpoints * *f.checkpoint_s));
  return text + "\n";
}

}  // namespace

std::string best_table(const SearchResult& result, const Planner& planner, double tokens) {
  std::string text =
      fmt::format("{:>3}{:>10}{:>10}{:>12}{:>8}{:>8}{:>8}{:>9}{:>10}  {}\n", "", "memory", "step s",
                  "tok/s/GPU", "MFU %", "full %", "bubble", "exposed", "kJ/step", "layout");
  int place = 0;
  for (const Evaluation& e : result.best)
    text += fmt::format(
        "{:>3}{:>10}{:>10.3f}{:>12.1f}{:>8.2f}{:>8.2f}{:>7.1f}%{:>8.1f}%{:>10.1f}  {}\n", ++place,
        format_bytes(e.memory_bytes), e.step_s, e.tokens_per_s_per_gpu, 100 * e.mfu_causal,
        100 * e.mfu_full, 100 * e.bubble, 100 * e.exposed_s() / e.step_s, e.node_joule / 1e3,
        to_string(e.layout));
  text += fmt::format(
      "{} layouts, {} fit. Memory with {} for the device itself; MFU with causal attention counted "
      "half and in full, of {:.4g} TFLOP/s; energy of nodes without PUE.\n",
      result.layouts, result.fitting, format_bytes(planner.machine().gpu.own_gb * 1e9),
      planner.machine().gpu.tflops(planner.job().precision));
  if (tokens > 0 && !result.best.empty())
    text += fmt::format(
        "{} tokens with the first: {}", format_count(tokens),
        run_line(footprint_of(result.best.front(), planner.job(), planner.machine(), tokens)));
  return text;
}

std::string misses_table(const SearchResult& result) {
  if (result.misses.empty()) return "";
  std::string text = "Near misses:\n";
  for (const SearchResult::Miss& miss : result.misses)
    text += fmt::format("  {:<60} {}\n", to_string(miss.evaluation.layout), miss.reason);
  return text;
}

std::string explained(Planner& planner, const Evaluation& e, double tokens) {
  const PlanLayout& l = e.layout;
  std::string text = fmt::format("{}\n\nMemory per rank, GiB:\n  {:>6}", to_string(l), "stage");
  for (int region = 0; region < kRegions; ++region)
    text += fmt::format("{:>15}", to_string(static_cast<Region>(region)));
  text += fmt::format("{:>10}\n", "all");
  const std::vector<RegionBytes> memory = planner.memory(l);
  for (std::size_t stage = 0; stage < memory.size(); ++stage) {
    // The middle of a long pipeline is a slope.
    if (memory.size() > 12 && stage > 2 && stage + 3 < memory.size()) continue;
    text += fmt::format("  {:>6}", stage);
    for (const std::int64_t bytes : memory[stage])
      text += fmt::format("{:>15.3f}", static_cast<double>(bytes) / (1 << 30));
    text += fmt::format("{:>10.3f}\n", static_cast<double>(total(memory[stage])) / (1 << 30));
  }
  const auto line = [&](const char* name, double seconds) {
    return fmt::format("  {:<34}{:>10.4f} s{:>7.1f} %\n", name, seconds, 100 * seconds / e.step_s);
  };
  text += "\nOne step:\n" + line("computing (slowest stage)", e.ideal_s) +
          line("pipeline bubble", e.bubble * e.step_s) +
          line("waiting for tensor, context ranks", e.tensor_s) +
          line("waiting for data ranks", e.data_s) + line("waiting for messages", e.message_s) +
          line("optimizer", e.optimizer_s) + line("data, logging", e.other_s) +
          line("all", e.step_s);
  if (e.slow_chance >= 0.01)
    text += fmt::format(
        "Of a hundred runs on this network {:.0f} meet slow messages, which take {:.4f} s of a "
        "step and are {}counted here.\n",
        100 * e.slow_chance, e.slow_s, e.slow_chance >= 0.5 ? "" : "not ");
  text += fmt::format("\n{:.1f} tokens/s/GPU, {:.0f} kJ per step in GPUs, {:.0f} in nodes\n",
                      e.tokens_per_s_per_gpu, e.gpu_joule / 1e3, e.node_joule / 1e3);
  if (tokens > 0)
    text += fmt::format("{} tokens: {}", format_count(tokens),
                        run_line(footprint_of(e, planner.job(), planner.machine(), tokens)));
  if (l.pp > 1) {
    const std::int64_t all = micro_batches_of(planner.job(), l);
    const int stages = std::min(l.pp, 16);
    const int shown = static_cast<int>(std::min<std::int64_t>(all, 2 * stages));
    const PipelineSchedule schedule = make_pipeline_schedule({l.schedule, stages, shown, l.chunks});
    const double forward = 1.0 / l.chunks;
    text += fmt::format(
        "\nThe pipeline, {} of {} stages and {} of {} micro-batches:\n{}", stages, l.pp, shown, all,
        draw_schedule(schedule, simulate_pipeline(schedule, {.forward = forward,
                                                             .backward_input = forward,
                                                             .backward_weight = forward})));
  }
  return text;
}

namespace {

nlohmann::ordered_json to_json(const Evaluation& e) {
  const PlanLayout& l = e.layout;
  return {{"layout",
           {{"tp", l.tp},
            {"cp", l.cp},
            {"pp", l.pp},
            {"dp", l.dp},
            {"chunks", l.chunks},
            {"schedule", to_string(l.schedule)},
            {"micro", l.micro},
            {"zero", l.zero},
            {"shard_group", l.shard_group},
            {"sequence_parallel", l.sequence_parallel},
            {"recompute", to_string(l.recompute)},
            {"recompute_every", l.recompute_every}}},
          {"fits", e.fits},
          {"memory_bytes", e.memory_bytes},
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
          {"optimizer_s", e.optimizer_s},
          {"slow_chance", e.slow_chance},
          {"slow_s", e.slow_s},
          {"gpu_energy_j", e.gpu_joule},
          {"node_energy_j", e.node_joule}};
}

}  // namespace

std::string search_json(const SearchResult& result, const Planner& planner, double tokens) {
  nlohmann::ordered_json best = nlohmann::ordered_json::array(), misses = best;
  for (const Evaluation& e : result.best) {
    best.push_back(to_json(e));
    if (tokens <= 0) continue;
    const RunFootprint f = footprint_of(e, planner.job(), planner.machine(), tokens);
    nlohmann::ordered_json run = {{"tokens", tokens},
                                  {"steps", f.steps},
                                  {"days", f.days},
                                  {"gpu_hours", f.gpu_hours},
                                  {"gpu_mwh", f.gpu_mwh},
                                  {"node_mwh", f.node_mwh},
                                  {"facility_mwh", f.facility_mwh}};
    if (f.tonnes_co2) run["tonnes_co2e"] = *f.tonnes_co2;
    if (f.euro) run["euro"] = *f.euro;
    best.back()["run"] = run;
  }
  for (const SearchResult::Miss& miss : result.misses) {
    misses.push_back(to_json(miss.evaluation));
    misses.back()["reason"] = miss.reason;
  }
  const nlohmann::ordered_json root = {{"machine", planner.machine().name},
                                       {"batch", planner.job().batch},
                                       {"sequence_length", planner.job().length},
                                       {"layouts", result.layouts},
                                       {"fitting", result.fitting},
                                       {"best", best},
                                       {"near_misses", misses}};
  return root.dump(2) + "\n";
}

std::string training_yaml(const Planner& planner, const Evaluation& e, const std::string& model,
                          const std::string& data, double tokens) {
  const PlanJob& job = planner.job();
  const PlanLayout& l = e.layout;
  const bool preset = [&] {
    const auto names = preset_names();
    return std::find(names.begin(), names.end(), model) != names.end();
  }();
  const double steps = tokens > 0 ? std::ceil(tokens / job.tokens()) : 1000;
  return fmt::format(
      "# {} on {}: {} ranks, {:.3f} s per step, {:.1f} tokens/s/GPU, {} per rank planned.\n"
      "run: {{dir: runs/{}, seed: 1}}\n"
      "model: {{{}: {}}}\n"
      "data:\n  train: [{{path: {}, weight: 1.0}}]\n  sequence_length: {}\n"
      "batch: {{global: {}, micro: {}}}\n"
      "optimizer: {{lr: 1e-4, min_lr: 1e-5, warmup_steps: {:.0f}}}\n"
      "train: {{steps: {:.0f}, precision: {}, checkpoint_every: {}}}\n"
      "layout: {{tp: {}, cp: {}, pp: {}, dp: {}, chunks: {}, zero: {}, shard_group: {}, "
      "sequence_parallel: {}, schedule: {}, recompute: {}, recompute_every: {}}}\n"
      "device: auto\n",
      model, planner.machine().name, l.ranks(), e.step_s, e.tokens_per_s_per_gpu,
      format_bytes(e.memory_bytes), preset ? model : "planned", preset ? "preset" : "config", model,
      data, job.length, job.batch, l.micro, std::min(2000.0, std::floor(steps / 20)), steps,
      to_string(job.precision), job.checkpoint_every, l.tp, l.cp, l.pp, l.dp, l.chunks, l.zero,
      l.shard_group, l.sequence_parallel, to_string(l.schedule), to_string(l.recompute),
      l.recompute_every);
}

}  // namespace kintsugi
