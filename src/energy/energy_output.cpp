#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/table.h"
#include "core/units.h"
#include "energy/carbon.h"
#include "energy/energy_report.h"

namespace kintsugi {
namespace {

using EnergyJson = nlohmann::ordered_json;

EnergyJson or_null(const std::optional<double>& value) {
  return value ? EnergyJson(*value) : EnergyJson(nullptr);
}
EnergyJson or_null(const std::string& text) {
  return text.empty() ? EnergyJson(nullptr) : EnergyJson(text);
}
EnergyJson known_or_null(double value) {
  return value >= 0 ? EnergyJson(value) : EnergyJson(nullptr);
}

EnergyJson joules_json(const LevelJoules& joules) {
  EnergyJson json;
  for (const EnergyLevel level : kEnergyLevels)
    json[std::string(to_string(level))] = or_null(joules[level]);
  return json;
}

EnergyJson check_json(const LevelMeasurement& source) {
  const std::optional<double> difference = check_difference(source);
  if (!difference) return nullptr;
  return {{"counter_j", *source.counter_j},
          {"integral_of_power_j", *source.integral_j},
          {"difference", *difference},
          {"doubtful", std::abs(*difference) > kDoubtful}};
}

EnergyJson level_json(const EnergyReport& report, EnergyLevel level) {
  const LevelMeasurement& source = report.source(level);
  const std::optional<double> joules = report.total()[level];
  const bool measured = joules.has_value();
  const auto of_all = [&](double per) {
    return measured && per > 0 ? EnergyJson(*joules / per) : EnergyJson(nullptr);
  };
  EnergyJson json = {{"joules", or_null(joules)},
                     {"kwh", of_all(kJoulesPerKwh)},
                     {"joules_per_token", of_all(report.tokens)},
                     {"joules_per_step", of_all(static_cast<double>(report.steps))},
                     {"mean_w_per_node", or_null(report.node_watts(level))},
                     {"source", or_null(source.source)},
                     {"kind", measured ? EnergyJson(to_string(source.kind)) : nullptr},
                     {"nodes_measured", source.nodes},
                     {"time_measured", report.coverage(level)},
                     {"check", check_json(source)},
                     {"reason", or_null(source.reason)}};
  if (level == EnergyLevel::Gpu) json["mean_w_per_gpu"] = or_null(report.gpu_watts());
  return json;
}

// What is missing for a figure, and how to give it.
std::string reason_of_null(const MeasuredEnergy& measured, double value, const char* key) {
  if (measured.levels.empty()) return "no energy was measured";
  return value >= 0 ? "" : std::string("set ") + key + ", or energy.machine";
}

EnergyJson facility_json(const EnergyReport& report, const MeasuredEnergy& measured,
                         const CarbonFootprint& footprint) {
  std::string reason = reason_of_null(measured, report.facility.pue, "energy.pue");
  if (reason.empty() && !footprint.facility_j)
    reason = "only " + measured.what() + " were measured, not whole nodes";
  return {{"pue", known_or_null(report.facility.pue)},
          {"joules", or_null(footprint.facility_j)},
          {"kwh", footprint.facility_j ? EnergyJson(to_kwh(*footprint.facility_j)) : nullptr},
          {"time_measured", measured.coverage},
          {"reason", or_null(reason)}};
}

EnergyJson carbon_json(const EnergyReport& report, const MeasuredEnergy& measured,
                       const CarbonFootprint& footprint) {
  const FacilitySpec& f = report.facility;
  const auto one = [&](const std::optional<double>& kg, double factor, const char* key) {
    return EnergyJson{{"kg", measured.levels.empty() ? EnergyJson(nullptr) : or_null(kg)},
                      {"kg_per_kwh", known_or_null(factor)},
                      {"reason", or_null(reason_of_null(measured, factor, key))}};
  };
  return {{"of", measured.levels.empty() ? EnergyJson(nullptr) : EnergyJson(footprint.of)},
          {"time_measured", measured.coverage},
          {"location_based", one(footprint.kg_co2, f.kg_co2_per_kwh, "energy.kg_co2_per_kwh")},
          {"market_based",
           one(footprint.kg_co2_market, f.kg_co2_per_kwh_market, "energy.kg_co2_per_kwh_market")},
          {"source", or_null(f.co2_source)}};
}

EnergyJson plan_json(const EnergyReport& report) {
  const PlanComparison comparison = compare_with_plan(report);
  const auto figures = [](const PlanComparison::Figures& f) {
    return EnergyJson{{"joules_per_token", f.joules_per_token}, {"watts", f.watts}};
  };
  const auto pair = [&](const std::optional<PlanComparison::Pair>& p) {
    if (!p) return EnergyJson(nullptr);
    return EnergyJson{{"predicted", figures(p->predicted)}, {"measured", figures(p->measured)}};
  };
  std::string reason = report.planned ? "" : report.no_plan;
  if (report.planned && !comparison.gpu && !comparison.node)
    reason = "neither GPUs nor whole nodes were measured";
  return {{"gpu", pair(comparison.gpu)},
          {"node", pair(comparison.node)},
          {"predicted_s", report.planned ? EnergyJson(report.planned->seconds) : nullptr},
          {"predicted_within", report.planned ? EnergyJson(report.planned->within) : nullptr},
          {"measured_s", report.productive().seconds},
          {"reason", or_null(reason)}};
}

EnergyJson setting_json(const std::optional<PowerSettingEffect>& effect) {
  if (!effect) return nullptr;
  const auto rate = [](const PowerSettingEffect::Rate& r) {
    return EnergyJson{{"tokens_per_s", r.tokens_per_s}, {"joules_per_token", r.joules_per_token}};
  };
  return {{"setting", effect->setting},
          {"level", to_string(effect->level)},
          {"before", rate(effect->before)},
          {"after", rate(effect->after)}};
}

EnergyJson phases_json(const EnergyReport& report) {
  EnergyJson phases;
  for (const EnergyPhase phase : kEnergyPhases)
    phases[std::string(to_string(phase))] = {{"seconds", report.phase(phase).seconds},
                                             {"joules", joules_json(report.phase(phase).joules)}};
  return phases;
}

EnergyJson attempts_json(const EnergyReport& report) {
  EnergyJson attempts = EnergyJson::array();
  for (const AttemptEnergy& a : report.attempts)
    attempts.push_back({{"first_step", a.first_step},
                        {"last_step", a.last_step},
                        {"seconds", a.seconds},
                        {"state", a.state},
                        {"joules", joules_json(a.joules)},
                        {"lost_joules", joules_json(a.lost)}});
  return attempts;
}

EnergyJson nodes_json(const EnergyReport& report) {
  EnergyJson nodes = EnergyJson::array();
  for (const NodeEnergy& node : report.by_node)
    nodes.push_back(
        {{"name", node.name}, {"joules", joules_json(node.joules)}, {"note", or_null(node.note)}});
  return nodes;
}

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
  const LevelMeasurement& source = report.source(level);
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

// Of the whole node if it is known: that is the level whose meter would be enough.
std::string why_nothing_was_measured(const EnergyReport& report) {
  for (const EnergyLevel level :
       {EnergyLevel::Node, EnergyLevel::Gpu, EnergyLevel::Cpu, EnergyLevel::Memory})
    if (const std::string& reason = report.source(level).reason; !reason.empty()) return reason;
  return "no meter was found";
}

std::string power_line(const EnergyReport& report) {
  std::string text;
  if (const auto watts = report.gpu_watts()) text = power_text(*watts) + " per GPU";
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

double joules_of(const EnergyReport& report, const MeasuredEnergy& measured, EnergyPhase phase) {
  double joules = 0;
  for (const EnergyLevel level : measured.levels)
    joules += report.phase(phase).joules[level].value_or(0);
  return joules;
}

std::string phases_line(const EnergyReport& report, const MeasuredEnergy& measured) {
  const double total = measured.total();
  if (total <= 0) return "";
  std::string text;
  for (const EnergyPhase phase : kEnergyPhases)
    if (const double joules = joules_of(report, measured, phase); joules > 0)
      text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", to_string(phase),
                          100 * joules / total);
  return text_line("used for", fmt::format("{} (of the {})", text, measured.what()));
}

std::string lost_line(const EnergyReport& report, const MeasuredEnergy& measured) {
  const double seconds = report.phase(EnergyPhase::Lost).seconds;
  const double joules = joules_of(report, measured, EnergyPhase::Lost);
  if (seconds <= 0 && joules <= 0) return text_line("lost", "nothing: no step was done twice");
  return text_line("lost",
                   fmt::format("{} of the {} in {} of steps that were done again or "
                               "discarded",
                               energy_text(joules), measured.what(), format_duration(seconds)));
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
  const std::string within =
      report.planned->within > 1 ? interval_text(report.planned->within) + " " : "";
  std::string text;
  const auto add = [&](const std::optional<PlanComparison::Pair>& pair, EnergyLevel level) {
    if (!pair) return;
    text += fmt::format(
        "{}{}: {} per token and {}, predicted {} {}and {} ({}, {})", text.empty() ? "" : "; ",
        parts_name(level), per_token_text(pair->measured.joules_per_token),
        power_text(pair->measured.watts), per_token_text(pair->predicted.joules_per_token), within,
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

// A cell after RFC 4180; control characters would break readers of lines.
std::string csv_cell(std::string text) {
  for (char& c : text)
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = ' ';
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string number_cell(const std::optional<double>& value) {
  return value ? fmt::format("{:.10g}", *value) : "";
}

// Column names and values of one run; other columns are unknown.
std::map<std::string, std::string> codecarbon_cells(const EnergyReport& report) {
  const MeasuredEnergy measured = measured_energy(report);
  const bool any = !measured.levels.empty();
  const double pue = report.facility.pue >= 0 ? report.facility.pue : 1;
  const CarbonFootprint footprint = carbon_of(measured.all(), report.facility);
  const auto kwh = [&](EnergyLevel level) {
    const std::optional<double>& joules = measured.joules[level];
    return number_cell(joules ? std::optional(to_kwh(*joules * pue)) : std::nullopt);
  };
  const auto watts = [&](EnergyLevel level) {
    const std::optional<double> one = report.node_watts(level);
    const auto nodes = static_cast<double>(report.source(level).nodes);
    return number_cell(one ? std::optional(*one * nodes) : std::nullopt);
  };
  const std::optional<double> kg = any ? footprint.kg_co2 : std::nullopt;
  const bool rate = kg && report.seconds > 0;
  const std::string gpus = report.gpus > 0 ? std::to_string(report.gpus) : "";
  return {
      {"timestamp", report.timestamp},
      {"project_name", report.run},
      {"run_id", report.run_id},
      {"duration", number_cell(report.seconds)},
      {"emissions", number_cell(kg)},
      {"emissions_rate", number_cell(rate ? std::optional(*kg / report.seconds) : std::nullopt)},
      {"cpu_power", watts(EnergyLevel::Cpu)},
      {"gpu_power", watts(EnergyLevel::Gpu)},
      {"ram_power", watts(EnergyLevel::Memory)},
      {"cpu_energy", kwh(EnergyLevel::Cpu)},
      {"gpu_energy", kwh(EnergyLevel::Gpu)},
      {"ram_energy", kwh(EnergyLevel::Memory)},
      {"energy_consumed",
       number_cell(any ? std::optional(to_kwh(measured.total() * pue)) : std::nullopt)},
      {"gpu_count", gpus},
      {"gpu_model", gpus.empty() || report.gpu_model.empty()
                        ? report.gpu_model
                        : fmt::format("{} x {}", gpus, report.gpu_model)},
      {"tracking_mode", "machine"},
      {"pue", report.facility.pue >= 0 ? number_cell(report.facility.pue) : ""}};
}

// The cells of a line, without quotes.
std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line)
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += c;
  return cells;
}

}  // namespace

std::string to_json(const EnergyReport& report) {
  const MeasuredEnergy measured = measured_energy(report);
  const CarbonFootprint footprint = carbon_of(measured.all(), report.facility);
  EnergyJson json = {{"run", report.run},
                     {"run_id", report.run_id},
                     {"timestamp", report.timestamp},
                     {"version", report.version},
                     {"machine", or_null(report.machine)},
                     {"nodes", report.nodes},
                     {"gpus", report.gpus},
                     {"gpu_model", or_null(report.gpu_model)},
                     {"seconds", report.seconds},
                     {"node_seconds", report.node_seconds},
                     {"steps", report.steps},
                     {"tokens", report.tokens}};
  for (const EnergyLevel level : kEnergyLevels)
    json["levels"][std::string(to_string(level))] = level_json(report, level);
  json["phases"] = phases_json(report);
  json["facility"] = facility_json(report, measured, footprint);
  json["co2e"] = carbon_json(report, measured, footprint);
  json["plan"] = plan_json(report);
  json["power_setting"] = setting_json(report.power_setting);
  json["attempts"] = attempts_json(report);
  json["by_node"] = nodes_json(report);
  return json_lines(json);
}

std::string to_text(const EnergyReport& report) {
  if (report.total() == LevelJoules{})
    return fmt::format("Energy: not measured on {}: {}\n",
                       report.nodes == 1 ? "this node" : "all nodes",
                       why_nothing_was_measured(report));
  const MeasuredEnergy measured = measured_energy(report);
  std::string text = title_line(report);
  for (const EnergyLevel level : kEnergyLevels)
    text += text_line(parts_name(level), level_text(report, level));
  if (measured.levels.empty()) return text + plan_line(report);
  const CarbonFootprint footprint = carbon_of(measured.all(), report.facility);
  return text + facility_line(report, measured, footprint) + power_line(report) +
         token_line(report, measured) + phases_line(report, measured) +
         lost_line(report, measured) + carbon_lines(report, measured, footprint) +
         plan_line(report) + setting_line(report.power_setting);
}

std::string codecarbon_header() {
  return "timestamp,project_name,run_id,experiment_id,duration,emissions,emissions_rate,cpu_power,"
         "gpu_power,ram_power,cpu_energy,gpu_energy,ram_energy,energy_consumed,water_consumed,"
         "country_name,country_iso_code,region,cloud_provider,cloud_region,os,python_version,"
         "codecarbon_version,cpu_count,cpu_model,gpu_count,gpu_model,longitude,latitude,"
         "ram_total_size,tracking_mode,cpu_utilization_percent,gpu_utilization_percent,"
         "ram_utilization_percent,ram_used_gb,on_cloud,pue,wue";
}

std::string to_codecarbon_csv(const EnergyReport& report, const std::string& header) {
  const std::map<std::string, std::string> cells = codecarbon_cells(report);
  std::string line;
  std::istringstream columns(header);
  for (std::string column; std::getline(columns, column, ',');) {
    const auto found = cells.find(column);
    line += (found == cells.end() ? "" : csv_cell(found->second)) + ",";
  }
  if (!line.empty()) line.pop_back();
  return line;
}

void write_codecarbon(const std::filesystem::path& file, const EnergyReport& report) {
  std::istringstream lines(std::filesystem::exists(file) ? read_text_file(file) : "");
  std::string header, text;
  std::getline(lines, header);
  while (header.ends_with('\r')) header.pop_back();
  if (header.empty()) header = codecarbon_header();
  if (header.find("energy_consumed") == std::string::npos)
    user_error("{} is not an emissions.csv of CodeCarbon: its first line has no energy_consumed",
               file.string());
  const std::vector<std::string> columns = csv_cells(header);
  const auto id = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), "run_id") -
                                           columns.begin());
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> cells = csv_cells(line);
    if (!line.empty() && (id >= cells.size() || cells[id] != report.run_id)) text += line + "\n";
  }
  write_file_atomically(file, header + "\n" + text + to_codecarbon_csv(report, header) + "\n");
}

}  // namespace kintsugi
