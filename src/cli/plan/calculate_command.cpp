#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan/output.h"
#include "cli/plan/search.h"
#include "core/error.h"
#include "core/units.h"
#include "energy/carbon.h"
#include "plan/costs/footprint.h"

namespace kintsugi {
namespace {

struct PlanCalculateOptions {
  std::string parameters = {}, tokens = {}, gpus = {}, machine = {};
  double days = 0, mfu = 0.4, flops_per_parameter = 6;
};

void plan_calculate(const PlanCalculateOptions& o) {
  if (o.machine.empty())
    user_error("kintsugi plan calculate needs --machine: the peak FLOP/s of its GPUs is needed");
  const Machine machine = load_machine(o.machine);
  const auto optional = [](const char* name, const std::string& text) {
    return text.empty() ? 0.0 : static_cast<double>(count_of(name, text));
  };
  ComputeCalculus c{.parameters = optional("--parameters", o.parameters),
                    .tokens = optional("--tokens", o.tokens),
                    .gpus = optional("--gpus", o.gpus),
                    .days = o.days,
                    .peak_flops = machine.gpu.bf16_tflops * 1e12,
                    .mfu = o.mfu,
                    .flops_per_parameter = o.flops_per_parameter};
  c = solve(c);
  const double gpu_mwh = to_mwh(gpu_joule(c, machine.gpu.busy_w()));
  const double host_mwh = c.gpus / static_cast<double>(machine.node.gpus) *
                          std::max(machine.node.host_w, 0.0) * c.days * 24 / 1e6;
  const RunEnergy energy = energy_of(gpu_mwh, host_mwh, machine);
  fmt::print(
      "{} parameters, {} tokens ({:.1f} per parameter), {}, {} at an MFU of {:.1f} %\n"
      "{}",
      format_count(c.parameters), format_count(c.tokens), c.tokens / c.parameters,
      format_number(std::llround(c.gpus), "GPU"), in_days(c.days), 100 * c.mfu,
      energy_text(energy, machine));
  // Both levels: many reports apply the PUE to the energy of the GPUs, a meter measures the nodes.
  if (energy.facility_mwh) {
    Machine gpus_only = machine;
    gpus_only.node.host_w = -1;
    const RunEnergy gpus = energy_of(gpu_mwh, 0, gpus_only);
    const std::string co2 = carbon_text(gpus.tonnes_co2, gpus.tonnes_co2_market);
    if (!co2.empty())
      fmt::print("; {} for the {}, {} for the {}", co2, gpus.co2_of,
                 carbon_text(energy.tonnes_co2, energy.tonnes_co2_market), energy.co2_of);
  } else if (const std::string co2 = carbon_text(energy.tonnes_co2, energy.tonnes_co2_market);
             !co2.empty()) {
    fmt::print("; {} for the {}", co2, energy.co2_of);
  }
  fmt::print("\n{}", undriven_note(machine));
}

void list_machines() {
  std::map<GpuVendor, std::string> undriven;
  for (const std::string& name : machine_names()) {
    const Machine machine = load_machine(name);
    fmt::print("{:<18}{:>6} nodes x {} {}\n", name, machine.nodes, machine.node.gpus,
               machine.gpu.name);
    if (const std::string why = why_undriven(machine.gpu.vendor); !why.empty())
      undriven[machine.gpu.vendor] = why;
  }
  for (const auto& [vendor, why] : undriven)
    fmt::print("Note: this program cannot use GPUs of {}: {}.\n", name_of(vendor), why);
}

}  // namespace

void add_plan_calculate(CLI::App& plan) {
  const auto o = std::make_shared<PlanCalculateOptions>();
  CLI::App* command = plan.add_subcommand(
      "calculate", "Days, energy and CO2e of a run from its size, without a layout");
  const AddOption add(*command);
  add("--parameters", o->parameters, "Parameters of the model: 30B");
  add("--tokens", o->tokens, "Tokens of the run: 450B");
  add("--gpus", o->gpus, "Number of GPUs");
  add("--days", o->days, "Duration of the run in days", real_number(above(0)));
  add("--machine", o->machine, "A machine's name (kintsugi plan machines) or YAML file");
  add("--mfu", o->mfu, "Model FLOP utilisation (default: 0.4)",
      real_number(Range{.low = 0, .high = 1, .low_open = true}));
  add("--flops-per-parameter", o->flops_per_parameter,
      "FLOPs per parameter and token, 6 (the default), or 8 with full recomputation",
      real_number(above(0)));
  command->footer(
      "Give three of --parameters, --tokens, --gpus and --days; prints the fourth.\n\nExample:\n"
      "  kintsugi plan calculate --parameters 30B --tokens 450B --gpus 88 --machine snellius-h100");
  command->callback([o] { plan_calculate(*o); });
}

void add_plan_machines(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand("machines", "List the built-in machines");
  command->footer("Example:\n  kintsugi plan machines");
  command->callback(list_machines);
}

}  // namespace kintsugi
