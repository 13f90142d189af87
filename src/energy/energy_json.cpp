#include <cmath>
#include <nlohmann/json.hpp>

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

EnergyJson check_json(const LevelSource& source) {
  const std::optional<double> difference = check_difference(source);
  if (!difference) return nullptr;
  return {{"counter_j", *source.counter_j},
          {"integral_of_power_j", *source.integral_j},
          {"difference", *difference},
          {"doubtful", std::abs(*difference) > kDoubtful}};
}

EnergyJson level_json(const EnergyReport& report, EnergyLevel level) {
  const LevelSource& source = report.source(level);
  const std::optional<double> joules = report.total()[level], watts = report.node_watts(level);
  const bool measured = joules.has_value();
  const auto of_all = [&](double per) {
    return measured && per > 0 ? EnergyJson(*joules / per) : EnergyJson(nullptr);
  };
  EnergyJson json = {{"joules", or_null(joules)},
                     {"kwh", of_all(kJoulesPerKwh)},
                     {"joules_per_token", of_all(report.tokens)},
                     {"joules_per_step", of_all(static_cast<double>(report.steps))},
                     {"mean_w_per_node", or_null(watts)},
                     {"source", or_null(source.source)},
                     {"kind", measured ? EnergyJson(to_string(source.kind)) : nullptr},
                     {"nodes_measured", source.nodes},
                     {"time_measured", report.coverage(level)},
                     {"check", check_json(source)},
                     {"reason", or_null(source.reason)}};
  if (level == EnergyLevel::Gpu)
    json["mean_w_per_gpu"] = watts && report.gpus > 0
                                 ? EnergyJson(*watts * static_cast<double>(report.nodes) /
                                              static_cast<double>(report.gpus))
                                 : EnergyJson(nullptr);
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
  return json.dump(2, ' ', false, EnergyJson::error_handler_t::replace) + "\n";
}

}  // namespace kintsugi
