#include "simulate/report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/table.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr double kAgreement = 10;  // percent

struct Part {
  const char* key;
  const char* text;
  double StepParts::*seconds;
};
constexpr std::array<Part, 7> kParts = {{
    {"computing_s", "compute (slowest stage)", &StepParts::compute_s},
    {"pipeline_s", "pipeline: bubble, messages", &StepParts::pipeline_s},
    {"tensor_wait_s", "exposed communication, tp, cp", &StepParts::tensor_s},
    {"expert_wait_s", "exposed communication, experts", &StepParts::experts_s},
    {"data_wait_s", "exposed communication, dp", &StepParts::data_s},
    {"optimizer_s", "optimizer (as priced)", &StepParts::update_s},
    {"other_s", "data loading, logging (as priced)", &StepParts::other_s},
}};

double percent(double simulated, double priced) {
  return priced > 0 ? 100 * (simulated / priced - 1) : 0;
}
std::string difference(double simulated, double priced) {
  return priced > 0 ? fmt::format("{:+.1f} %", percent(simulated, priced)) : "";
}

std::string call_text(const StepReplay& replay, const StepReplay::Call& call) {
  return fmt::format("{} {}, {}", replay.groups[call.group].name, to_string(call.kind),
                     format_bytes(call.bytes));
}

// The part whose difference is largest.
std::string why(const SimulatedStep& step) {
  const double by = percent(step.simulated.step_s(), step.priced.step_s());
  if (std::abs(by) <= kAgreement) return "";
  const auto gap = [&](const Part& part) {
    return (step.simulated.*part.seconds - step.priced.*part.seconds) * (by > 0 ? 1 : -1);
  };
  const Part* largest = &kParts.front();
  for (const Part& part : kParts)
    if (gap(part) > gap(*largest)) largest = &part;
  return fmt::format(
      "The simulated step is {:.0f} % {} than the priced one, most of it in \"{}\".\n",
      std::abs(by), by > 0 ? "longer" : "shorter", largest->text);
}

}  // namespace

std::string step_text(const StepReplay& replay, const SimulatedStep& step) {
  std::string text =
      fmt::format("{} on {}, simulated on {} with {} flows:\n", replay.layout, replay.machine,
                  step.network, format_count(static_cast<double>(step.flows)));
  const auto line = [&](const std::string& name, double priced, double simulated, double scale,
                        const char* unit) {
    text += fmt::format("  {:<44}{:>11.4f} {}{:>11.4f} {}{:>10}\n", name, scale * priced, unit,
                        scale * simulated, unit, difference(simulated, priced));
  };
  text += fmt::format("  {:<44}{:>13}{:>13}\n", "One step", "priced", "simulated");
  for (const Part& part : kParts)
    line(part.text, step.priced.*part.seconds, step.simulated.*part.seconds, 1, "s ");
  line("total", step.priced.step_s(), step.simulated.step_s(), 1, "s ");
  if (!replay.calls.empty()) text += "  One call, all groups at a time\n";
  for (std::size_t i = 0; i < replay.calls.size(); ++i)
    line(call_text(replay, replay.calls[i]), replay.calls[i].priced_s, step.call_s[i], 1e3, "ms");
  return text + why(step);
}

std::string step_json(const StepReplay& replay, const SimulatedStep& step, NetworkKind kind) {
  using nlohmann::ordered_json;
  const auto parts = [](const StepParts& of) {
    ordered_json json = {{"step_time_s", of.step_s()}};
    for (const Part& part : kParts) json[part.key] = of.*part.seconds;
    return json;
  };
  ordered_json calls = ordered_json::array();
  for (std::size_t i = 0; i < replay.calls.size(); ++i)
    calls.push_back({{"group", replay.groups[replay.calls[i].group].name},
                     {"kind", to_string(replay.calls[i].kind)},
                     {"bytes", replay.calls[i].bytes},
                     {"priced_s", replay.calls[i].priced_s},
                     {"simulated_s", step.call_s[i]}});
  return json_lines({{"layout", replay.layout},
                     {"network", to_string(kind)},
                     {"flows", step.flows},
                     {"difference_percent", percent(step.simulated.step_s(), step.priced.step_s())},
                     {"priced", parts(step.priced)},
                     {"simulated", parts(step.simulated)},
                     {"calls", calls}});
}

}  // namespace kintsugi
