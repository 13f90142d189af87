#include "plan/costs/footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/units.h"
#include "energy/carbon.h"
#include "optim/update_rule.h"
#include "plan/costs/failures.h"
#include "plan/search/interval.h"

namespace kintsugi {
namespace {

constexpr double kDay = 86400;

void fill_checkpoints(const PlanJob& job, const Machine& machine, double nodes, RunFootprint& f) {
  f.checkpoint_gb = checkpoint_bytes(job) / 1e9;
  if (job.save_s > 0)
    f.checkpoint_s = job.save_s;
  else if (f.storage = storage_of(machine, nodes); f.storage.gb_s > 0)
    f.checkpoint_s = f.checkpoint_gb / f.storage.gb_s;
  f.checkpoint_every = job.checkpoint_every;
}

void count_checkpoints(RunFootprint& f) {
  if (f.checkpoint_every > 0)
    f.checkpoints = std::ceil(f.steps / static_cast<double>(f.checkpoint_every));
}

// Whole steps: the closed form is rounded to the better side.
std::int64_t best_steps(const FailingRun& run, double step_s, double most) {
  const double steps = best_interval_s(run) / step_s;
  const auto cost = [&](double n) { return expected_time(run, n * step_s).total_s() / n; };
  const double low = std::clamp(std::floor(steps), 1.0, most), high = std::min(low + 1, most);
  return static_cast<std::int64_t>(cost(high) < cost(low) ? high : low);
}

// Beyond this many failures per successful stretch a run makes no progress worth planning.
constexpr double kMostAttempts = 20;

ExpectedTime expected_run(const FailingRun& run, const RunFootprint& f, double step_s) {
  const double every = std::min(static_cast<double>(f.checkpoint_every), f.steps);
  if ((every * step_s + run.save_s + run.restart_s) / run.mtbf_s > std::log(kMostAttempts))
    user_error(
        "nodes fail every {}, and {} with a checkpoint take {}: the run would hardly progress; "
        "save "
        "more often, or use fewer nodes or faster storage",
        format_duration(run.mtbf_s), format_number(std::llround(every), "step"),
        format_duration(every * step_s + run.save_s));
  const double whole = std::ceil(f.steps / every) - 1;
  const ExpectedTime one = expected_time(run, every * step_s),
                     last = expected_time(run, (f.steps - whole * every) * step_s);
  return {.trained_s = whole * one.trained_s + last.trained_s,
          .restarted_s = whole * one.restarted_s + last.restarted_s};
}

// Failures of the run's nodes, and the checkpoints that fit them. Empty if nothing is known about
// failures or checkpoints.
std::optional<RunFailures> failures_of(const Evaluation& e, const PlanJob& job,
                                       const Machine& machine, RunFootprint& f) {
  const double nodes = std::ceil(e.layout.ranks() / static_cast<double>(machine.node.gpus));
  if (machine.node.mtbf_h <= 0 || !f.checkpoint_s || e.step_s <= 0) return std::nullopt;
  const FailingRun run{.mtbf_s = machine.node.mtbf_h * 3600 / nodes,
                       .save_s = *f.checkpoint_s,
                       .restart_s = job.restart_s + *f.checkpoint_s};
  RunFailures failures{.mtbf_s = run.mtbf_s};
  failures.best_every = best_steps(run, e.step_s, f.steps);
  if (job.best_checkpoints) f.checkpoint_every = failures.best_every;
  if (f.checkpoint_every == 0) return std::nullopt;
  count_checkpoints(f);
  const ExpectedTime time = expected_run(run, f, e.step_s);
  failures.failures = time.total_s() / run.mtbf_s;
  failures.lost_s = time.trained_s - f.steps * e.step_s - f.checkpoints * run.save_s;
  failures.restarts_s = time.restarted_s;
  failures.spare_nodes = spare_nodes(job.repair_s / run.mtbf_s, kSpareChance);
  failures.spares_there =
      std::min(failures.spare_nodes, machine.nodes - static_cast<std::int64_t>(nodes));
  return failures;
}

// Time, energy and cost. Energy of the GPUs and of everything else in the nodes.
void fill_totals(const Evaluation& e, const Machine& machine, RunFootprint& f) {
  const double gpus = e.layout.ranks(), node_gpus = static_cast<double>(machine.node.gpus);
  const double nodes = std::ceil(gpus / node_gpus), host_w = std::max(machine.node.host_w, 0.0);
  const RunFailures none, &failures = f.failures ? *f.failures : none;
  const double spare = static_cast<double>(failures.spares_there);
  const double pause_s = f.checkpoints * f.checkpoint_s.value_or(0);             // GPUs idle
  const double steps = f.steps + (f.failures ? failures.lost_s / e.step_s : 0);  // and again
  const double idle_s = pause_s + failures.restarts_s, run_s = steps * e.step_s + idle_s;
  f.days = run_s / kDay;
  f.gpu_hours = run_s / 3600 * (gpus + spare * node_gpus);
  const double gpu_joule =
      steps * e.gpu_joule + machine.gpu.idle_w * (gpus * idle_s + spare * node_gpus * run_s);
  const double hosts =
      steps * (e.node_joule - e.gpu_joule) + host_w * (nodes * idle_s + spare * run_s);
  f.energy = energy_of(to_mwh(gpu_joule), to_mwh(hosts), machine);
  if (machine.facility.eur_per_gpu_hour >= 0)
    f.euro = f.gpu_hours * machine.facility.eur_per_gpu_hour;
}

// The difference to the same run without failures.
void fill_losses(const RunFootprint& with, const RunFootprint& without, RunFailures& failures) {
  failures.gpu_hours = with.gpu_hours - without.gpu_hours;
  failures.mwh = highest_mwh(with.energy) - highest_mwh(without.energy);
  failures.mwh_of = with.energy.co2_of;
  if (with.euro) failures.euro = *with.euro - *without.euro;
}

}  // namespace

double checkpoint_bytes(const PlanJob& job) {
  const DType wide = accumulator_of(job.precision);
  const UpdateRules rules = update_rules(job.optimizer);
  const ParameterSet set(job.model);
  double bytes = 0;
  for (const Parameter& parameter : set.parameters()) {
    if (!parameter.trained) {
      bytes += job.model.lora.on() ? 0
                                   : static_cast<double>(parameter.shape.elements()) *
                                         static_cast<double>(size_of(job.precision));
      continue;
    }
    std::size_t each = size_of(job.precision) + (wide != job.precision ? size_of(wide) : 0) +
                       (job.optimizer.ema.on() ? size_of(wide) : 0);
    for (const StateSlot& slot : rules(parameter).slots(job.precision)) each += size_of(slot.dtype);
    bytes += static_cast<double>(parameter.shape.elements()) * static_cast<double>(each);
  }
  return bytes;
}

double highest_mwh(const RunEnergy& e) {
  return e.facility_mwh.value_or(e.node_mwh.value_or(e.gpu_mwh));
}

RunEnergy energy_of(double gpu_mwh, double host_mwh, const Machine& machine) {
  const bool hosts = machine.node.host_w >= 0, pue = machine.facility.pue >= 0;
  RunEnergy energy{.gpu_mwh = gpu_mwh};
  if (hosts) energy.node_mwh = gpu_mwh + host_mwh;
  if (!hosts) energy.missing = "node.host_w";
  if (!pue) energy.missing += hosts ? "facility.pue" : " and facility.pue";
  const CarbonFootprint carbon = carbon_of({.joules = from_mwh(energy.node_mwh.value_or(gpu_mwh)),
                                            .what = hosts ? "nodes" : "GPUs",
                                            .whole_nodes = hosts},
                                           machine.facility);
  const auto thousandth = [](const std::optional<double>& kg) {
    return kg ? std::optional(*kg / 1000) : std::nullopt;
  };
  if (carbon.facility_j) energy.facility_mwh = to_mwh(*carbon.facility_j);
  energy.co2_of = carbon.of;
  energy.tonnes_co2 = thousandth(carbon.kg_co2);
  energy.tonnes_co2_market = thousandth(carbon.kg_co2_market);
  return energy;
}

RunFootprint& operator+=(RunFootprint& total, const RunFootprint& next) {
  const auto add = [](std::optional<double>& sum, const std::optional<double>& more) {
    sum = sum && more ? std::optional(*sum + *more) : std::nullopt;
  };
  total.steps += next.steps;
  if (const double days = total.days + next.days; days > 0)
    total.within = (total.days * total.within + next.days * next.within) / days;
  total.days += next.days;
  total.gpu_hours += next.gpu_hours;
  total.energy.gpu_mwh += next.energy.gpu_mwh;
  add(total.energy.node_mwh, next.energy.node_mwh);
  add(total.energy.facility_mwh, next.energy.facility_mwh);
  add(total.energy.tonnes_co2, next.energy.tonnes_co2);
  add(total.energy.tonnes_co2_market, next.energy.tonnes_co2_market);
  add(total.euro, next.euro);
  total.checkpoint_gb = std::max(total.checkpoint_gb, next.checkpoint_gb);
  total.checkpoints += next.checkpoints;
  if (!total.failures || !next.failures) {
    total.failures.reset();
    return total;
  }
  RunFailures& failures = *total.failures;
  failures.failures += next.failures->failures;
  failures.lost_s += next.failures->lost_s;
  failures.restarts_s += next.failures->restarts_s;
  failures.gpu_hours += next.failures->gpu_hours;
  failures.mwh += next.failures->mwh;
  add(failures.euro, next.failures->euro);
  failures.spare_nodes = std::max(failures.spare_nodes, next.failures->spare_nodes);
  failures.spares_there = std::max(failures.spares_there, next.failures->spares_there);
  return total;
}

RunFootprint footprint_of(const Evaluation& e, const PlanJob& job, const Machine& machine,
                          double tokens) {
  RunFootprint f;
  f.steps = std::ceil(tokens / job.tokens());
  f.within = step_intervals().of(step_kind(job, e, machine)).within;
  const double nodes = std::ceil(e.layout.ranks() / static_cast<double>(machine.node.gpus));
  fill_checkpoints(job, machine, nodes, f);
  f.failures = failures_of(e, job, machine, f);
  count_checkpoints(f);
  RunFootprint without = f;
  without.failures.reset();
  fill_totals(e, machine, without);
  if (!f.failures) return without;
  fill_totals(e, machine, f);
  fill_losses(f, without, *f.failures);
  return f;
}

ComputeCalculus solve(ComputeCalculus c) {
  const int missing = (c.parameters == 0) + (c.tokens == 0) + (c.gpus == 0) + (c.days == 0);
  if (missing != 1)
    user_error(
        "give exactly three of parameters, tokens, GPUs and days; the fourth is computed ({} are "
        "missing)",
        missing);
  for (const double value : {c.parameters, c.tokens, c.gpus, c.days})
    if (!(value >= 0 && value < 1e30))
      user_error("{} is not a valid number of parameters, tokens, GPUs or days", value);
  if (!(c.flops_per_parameter > 0 && c.flops_per_parameter < 1e6))
    user_error("{} FLOPs per parameter and token: give 6, or 8 with full recomputation",
               c.flops_per_parameter);
  if (!(c.peak_flops > 0 && c.mfu > 0 && c.mfu <= 1))
    user_error("a peak of {} FLOP/s with an MFU of {} is not valid: the MFU is above 0, at most 1",
               c.peak_flops, c.mfu);
  const double rate = c.peak_flops * c.mfu;  // of one GPU
  if (c.parameters == 0)
    c.parameters = c.gpus * c.days * kDay * rate / (c.flops_per_parameter * c.tokens);
  else if (c.tokens == 0)
    c.tokens = c.gpus * c.days * kDay * rate / (c.flops_per_parameter * c.parameters);
  else if (c.gpus == 0)
    c.gpus = c.flops_per_parameter * c.parameters * c.tokens / (c.days * kDay * rate);
  else
    c.days = c.flops_per_parameter * c.parameters * c.tokens / (c.gpus * rate * kDay);
  return c;
}

double gpu_joule(const ComputeCalculus& c, double watt) { return c.gpus * c.days * kDay * watt; }

}  // namespace kintsugi
