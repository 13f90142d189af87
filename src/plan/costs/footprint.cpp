#include "plan/costs/footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "energy/carbon.h"
#include "optim/update_rule.h"

namespace kintsugi {
namespace {

constexpr double kDay = 86400;

void fill_checkpoints(const PlanJob& job, const Machine& machine, double nodes, RunFootprint& f) {
  f.checkpoint_gb = checkpoint_bytes(job) / 1e9;
  f.storage = storage_of(machine, nodes);
  if (f.storage.gb_s > 0) f.checkpoint_s = f.checkpoint_gb / f.storage.gb_s;
  if (job.checkpoint_every > 0)
    f.checkpoints = std::ceil(f.steps / static_cast<double>(job.checkpoint_every));
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
  return total;
}

RunFootprint footprint_of(const Evaluation& e, const PlanJob& job, const Machine& machine,
                          double tokens) {
  RunFootprint f;
  f.steps = std::ceil(tokens / job.tokens());
  const double nodes = std::ceil(e.layout.ranks() / static_cast<double>(machine.node.gpus));
  fill_checkpoints(job, machine, nodes, f);
  const double pause_s = f.checkpoints * f.checkpoint_s.value_or(0);  // GPUs idle
  const double idle = e.layout.ranks() * machine.gpu.idle_w * pause_s;
  f.days = (f.steps * e.step_s + pause_s) / kDay;
  f.gpu_hours = f.days * 24 * e.layout.ranks();
  const double hosts =
      f.steps * (e.node_joule - e.gpu_joule) + nodes * std::max(machine.node.host_w, 0.0) * pause_s;
  f.energy = energy_of(to_mwh(f.steps * e.gpu_joule + idle), to_mwh(hosts), machine);
  if (machine.facility.eur_per_gpu_hour >= 0)
    f.euro = f.gpu_hours * machine.facility.eur_per_gpu_hour;
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
