#include <fmt/format.h>

#include <cmath>

#include "core/units.h"
#include "energy/carbon.h"
#include "energy/energy_report.h"

namespace kintsugi {
namespace {

// As the GPT-NL talk counts: 14 t are 40,000 km.
constexpr double kKgPerCarKm = 0.35;
constexpr double kNearlyAll = 0.99;  // less measured time: the figure is a lower limit

std::string lower_limit(double coverage) { return coverage < kNearlyAll ? "at least " : ""; }

std::string signed_percent(double measured, double predicted) {
  return predicted > 0 ? fmt::format("{:+.1f} %", 100 * (measured / predicted - 1)) : "no figure";
}

std::string text_line(std::string_view title, const std::string& text) {
  return fmt::format("  {:<14}{}\n", title, text);
}

std::string title_line(const EnergyReport& report) {
  return fmt::format(
      "Energy of {}, {} tokens, {} in {} on {}{}\n", format_number(report.steps, "step"),
      format_count(report.tokens), format_duration(report.seconds),
      format_number(static_cast<std::int64_t>(report.attempts.size()), "attempt"),
      format_number(report.nodes, "node"), report.machine.empty() ? "" : " of " + report.machine);
}

std::string level_text(const EnergyReport& report, EnergyLevel level) {
  const LevelSource& source = report.source(level);
  const std::optional<double> joules = report.total()[level];
  const std::string why = source.reason.empty() ? "no meter was found" : source.reason;
  if (!joules) return "not measured: " + why;
  const double coverage = report.coverage(level);
  const std::string from = source.kind == MeterKind::Estimate
                               ? "an estimate (energy.node_w)"
                               : fmt::format("{} {}", source.source, to_string(source.kind));
  const std::string amount =
      *joules < kJoulesPerKwh / 1000
          ? joules_text(*joules)
          : fmt::format("{} ({})", energy_text(*joules), joules_text(*joules));
  std::string text =
      fmt::format("{}{}: {}, {} of {} nodes, {:.1f} % of the time", lower_limit(coverage), amount,
                  from, source.nodes, report.nodes, 100 * coverage);
  if (!source.reason.empty()) text += fmt::format(" ({})", source.reason);
  if (const std::optional<double> difference = check_difference(source);
      difference && std::abs(*difference) > kDoubtful)
    text += fmt::format("; doubtful: counters and integral of power differ by {:+.1f} %",
                        100 * *difference);
  return text;
}

std::string levels_text(const EnergyReport& report) {
  std::string text;
  for (const EnergyLevel level : kEnergyLevels)
    text += text_line(parts_name(level), level_text(report, level));
  return text;
}

// Of the whole node if it is known: that is the level whose meter would be enough.
std::string why_nothing_was_measured(const EnergyReport& report) {
  for (const EnergyLevel level :
       {EnergyLevel::Node, EnergyLevel::Gpu, EnergyLevel::Cpu, EnergyLevel::Memory})
    if (const std::string& reason = report.source(level).reason; !reason.empty()) return reason;
  return "no meter was found";
}

std::string power_line(const EnergyReport& report) {
  std::string text;
  if (const auto watts = report.node_watts(EnergyLevel::Gpu); watts && report.gpus > 0)
    text = fmt::format("{} per GPU", power_text(*watts * static_cast<double>(report.nodes) /
                                                static_cast<double>(report.gpus)));
  if (const auto watts = report.node_watts(EnergyLevel::Node))
    text += fmt::format("{}{} per node", text.empty() ? "" : ", ", power_text(*watts));
  return text.empty() ? "" : text_line("mean power", text);
}

std::string token_line(const EnergyReport& report, const MeasuredEnergy& measured) {
  if (report.tokens <= 0) return "";
  std::string text;
  for (const EnergyLevel level : {EnergyLevel::Gpu, EnergyLevel::Node})
    if (measured.joules[level])
      text +=
          fmt::format("{}{}{} in {}", text.empty() ? "" : ", ", lower_limit(report.coverage(level)),
                      per_token_text(*measured.joules[level] / report.tokens), parts_name(level));
  return text.empty() ? "" : text_line("per token", text);
}

std::string phases_line(const EnergyReport& report, const MeasuredEnergy& measured) {
  const double total = measured.total();
  if (total <= 0) return "";
  std::string text;
  for (const EnergyPhase phase : kEnergyPhases) {
    double joules = 0;
    for (const EnergyLevel level : measured.levels)
      joules += report.phase(phase).joules[level].value_or(0);
    if (joules > 0)
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", to_string(phase),
                          100 * joules / total);
  }
  return text_line("used for", fmt::format("{} (of the {})", text, measured.what()));
}

std::string lost_line(const EnergyReport& report, const MeasuredEnergy& measured) {
  const PhaseEnergy& lost = report.phase(EnergyPhase::Lost);
  double joules = 0;
  for (const EnergyLevel level : measured.levels) joules += lost.joules[level].value_or(0);
  if (lost.seconds <= 0 && joules <= 0) return text_line("lost", "nothing: no step was done twice");
  return text_line(
      "lost", fmt::format("{} of the {} in {} of steps that were done again or "
                          "discarded",
                          energy_text(joules), measured.what(), format_duration(lost.seconds)));
}

std::string facility_line(const EnergyReport& report, const MeasuredEnergy& measured,
                          const CarbonFootprint& footprint) {
  if (footprint.facility_j)
    return text_line("facility",
                     fmt::format("{}{} with PUE {:.4g}", lower_limit(measured.coverage),
                                 energy_text(*footprint.facility_j), report.facility.pue));
  return text_line("facility", report.facility.pue >= 0
                                   ? "unknown: whole nodes were not measured"
                                   : "unknown: set energy.pue, or energy.machine");
}

std::string carbon_lines(const EnergyReport& report, const MeasuredEnergy& measured,
                         const CarbonFootprint& footprint) {
  const FacilitySpec& f = report.facility;
  if (!footprint.kg_co2 && !footprint.kg_co2_market)
    return text_line("CO2e", "unknown: set energy.kg_co2_per_kwh, or energy.machine");
  const auto one = [](const std::optional<double>& kg, double factor, const char* how) {
    return kg ? fmt::format("{} {} ({:.4g} kg/kWh)", mass_text(*kg), how, factor)
              : fmt::format("{} unknown", how);
  };
  std::string text = text_line(
      "CO2e", fmt::format("{}{}, {}, for the {}", lower_limit(measured.coverage),
                          one(footprint.kg_co2, f.kg_co2_per_kwh, "location-based"),
                          one(footprint.kg_co2_market, f.kg_co2_per_kwh_market, "market-based"),
                          footprint.of));
  text += text_line("", f.co2_source.empty() ? "source of the factors: not given"
                                             : "source of the factors: " + f.co2_source);
  if (footprint.kg_co2 && *footprint.kg_co2 >= kKgPerCarKm)
    text += text_line("", fmt::format("as much as {:.0f} km by car at {:.2f} kg/km",
                                      *footprint.kg_co2 / kKgPerCarKm, kKgPerCarKm));
  return text;
}

std::string plan_line(const EnergyReport& report) {
  if (!report.planned) return text_line("plan", "no prediction: " + report.no_plan);
  const PlanComparison comparison = compare_with_plan(report);
  std::string text;
  const auto add = [&](const std::optional<PlanComparison::Pair>& pair, EnergyLevel level) {
    if (!pair) return;
    text += fmt::format(
        "{}{}: {} per token and {}, predicted {} and {} ({}, {})", text.empty() ? "" : "; ",
        parts_name(level), per_token_text(pair->measured.joules_per_token),
        power_text(pair->measured.watts), per_token_text(pair->predicted.joules_per_token),
        power_text(pair->predicted.watts),
        signed_percent(pair->measured.joules_per_token, pair->predicted.joules_per_token),
        signed_percent(pair->measured.watts, pair->predicted.watts));
  };
  add(comparison.gpu, EnergyLevel::Gpu);
  add(comparison.node, EnergyLevel::Node);
  if (text.empty()) text = "no comparison: neither GPUs nor whole nodes were measured";
  return text_line("plan", text);
}

std::string setting_line(const std::optional<PowerSettingEffect>& effect) {
  if (!effect) return "";
  const auto& [setting, level, before, after] = *effect;
  return text_line("power setting",
                   fmt::format("{}: {:.4g} -> {:.4g} tokens/s ({}), {} -> {} per token in {} ({})",
                               setting, before.tokens_per_s, after.tokens_per_s,
                               signed_percent(after.tokens_per_s, before.tokens_per_s),
                               per_token_text(before.joules_per_token),
                               per_token_text(after.joules_per_token), parts_name(level),
                               signed_percent(after.joules_per_token, before.joules_per_token)));
}

}  // namespace

std::string to_text(const EnergyReport& report) {
  if (report.total() == LevelJoules{})
    return fmt::format("Energy: not measured on {}: {}\n",
                       report.nodes == 1 ? "this node" : "all nodes",
                       why_nothing_was_measured(report));
  const MeasuredEnergy measured = measured_energy(report);
  std::string text = title_line(report) + levels_text(report);
  if (measured.levels.empty()) return text + plan_line(report);
  const CarbonFootprint footprint = carbon_of(measured.all(), report.facility);
  return text + facility_line(report, measured, footprint) + power_line(report) +
         token_line(report, measured) + phases_line(report, measured) +
         lost_line(report, measured) + carbon_lines(report, measured, footprint) +
         plan_line(report) + setting_line(report.power_setting);
}

}  // namespace kintsugi
