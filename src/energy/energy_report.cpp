#include "energy/energy_report.h"

#include <algorithm>
#include <numeric>

#include "energy/energy_totals.h"

namespace kintsugi {
namespace {

constexpr std::array<EnergyLevel, 3> kPartsOfNode = {EnergyLevel::Gpu, EnergyLevel::Cpu,
                                                     EnergyLevel::Memory};

std::optional<PlanComparison::Pair> compared(const EnergyReport& report, EnergyLevel level,
                                             double predicted_j) {
  const PhaseEnergy measured = report.productive();
  const std::optional<double>& joules = measured.joules[level];
  const double coverage = report.coverage_after_startup(level);
  if (!joules || report.tokens <= 0 || measured.seconds <= 0 || coverage <= 0) return {};
  // The joules are those of the covered time.
  const double whole = *joules / coverage;
  return PlanComparison::Pair{
      .predicted = {predicted_j / report.tokens, predicted_j / report.planned->seconds},
      .measured = {whole / report.tokens, whole / measured.seconds}};
}

}  // namespace

std::string_view parts_name(EnergyLevel level) {
  constexpr std::array<std::string_view, kEnergyLevels.size()> kNames = {"GPUs", "CPUs", "memory",
                                                                         "nodes"};
  return kNames[static_cast<std::size_t>(level)];
}

LevelJoules& operator+=(LevelJoules& sum, const LevelJoules& other) {
  for (const EnergyLevel level : kEnergyLevels)
    if (other[level]) sum[level] = sum[level].value_or(0) + *other[level];
  return sum;
}

std::string_view to_string(EnergyPhase phase) {
  constexpr std::array<std::string_view, kEnergyPhases.size()> kNames = {
      "compute", "communication", "checkpoint", "validation", "startup", "other", "lost"};
  return kNames[static_cast<std::size_t>(phase)];
}

LevelJoules EnergyReport::total() const {
  LevelJoules sum;
  for (const PhaseEnergy& one : phases) sum += one.joules;
  return sum;
}

PhaseEnergy EnergyReport::productive() const {
  PhaseEnergy sum = phase(EnergyPhase::Compute);
  sum.seconds += phase(EnergyPhase::Communication).seconds;
  sum.joules += phase(EnergyPhase::Communication).joules;
  return sum;
}

double EnergyReport::coverage(EnergyLevel level) const {
  if (node_seconds <= 0) return 0;
  return std::clamp(source(level).covered_s / node_seconds, 0.0, 1.0);
}

double EnergyReport::coverage_after_startup(EnergyLevel level) const {
  const double startup = seconds > 0 ? phase(EnergyPhase::Startup).seconds / seconds : 0;
  const double rest = node_seconds * (1 - std::min(1.0, startup));
  return rest > 0 ? std::clamp(source(level).covered_s / rest, 0.0, 1.0) : 0;
}

std::optional<double> EnergyReport::node_watts(EnergyLevel level) const {
  const std::optional<double> joules = total()[level];
  const double covered_s = source(level).covered_s;
  if (!joules || covered_s <= 0) return {};
  return *joules / covered_s;
}

std::optional<double> EnergyReport::gpu_watts() const {
  const std::optional<double> watts = node_watts(EnergyLevel::Gpu);
  if (!watts || gpus <= 0) return {};
  return *watts * static_cast<double>(nodes) / static_cast<double>(gpus);
}

void add_context(const EnergyContext& context, const std::vector<std::int64_t>& steps,
                 EnergyReport& report) {
  report.machine = context.machine;
  report.facility = context.facility;
  report.planned.reset();
  report.no_plan = context.no_plan;
  if (context.planned.empty()) return;
  if (steps.size() > context.planned.size()) {
    report.no_plan = "the plan does not have all stages of the run";
    return;
  }
  PlannedStep sum{.node_j = 0};
  double within = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const PlannedStep& step = context.planned[i];
    const auto count = static_cast<double>(steps[i]);
    sum.seconds += count * step.seconds;
    within += count * step.seconds * step.within;
    sum.gpu_j += count * step.gpu_j;
    sum.node_j = sum.node_j && step.node_j ? std::optional(*sum.node_j + count * *step.node_j)
                                           : std::nullopt;
  }
  if (sum.seconds > 0) sum.within = within / sum.seconds;
  if (sum.seconds > 0) report.planned = sum;
  if (!report.planned) report.no_plan = "no step is finished";
}

double MeasuredEnergy::total() const {
  return std::accumulate(levels.begin(), levels.end(), 0.0, [&](double sum, EnergyLevel level) {
    return sum + joules[level].value_or(0);
  });
}

std::string MeasuredEnergy::what() const {
  std::string text;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (i > 0) text += i + 1 == levels.size() ? " and " : ", ";
    text += parts_name(levels[i]);
  }
  return text;
}

EnergyOf MeasuredEnergy::all() const {
  return {
      .joules = total(), .what = what(), .whole_nodes = levels == std::vector{EnergyLevel::Node}};
}

MeasuredEnergy measured_energy(const EnergyReport& report) {
  MeasuredEnergy measured{.joules = report.total()};
  const auto stands = [&](EnergyLevel level) {
    return measured.joules[level] && report.coverage(level) >= kLeastCoverage;
  };
  if (stands(EnergyLevel::Node))
    measured.levels = {EnergyLevel::Node};
  else
    for (const EnergyLevel level : kPartsOfNode)
      if (stands(level)) measured.levels.push_back(level);
  measured.coverage = measured.levels.empty() ? 0 : 1;
  for (const EnergyLevel level : measured.levels)
    measured.coverage = std::min(measured.coverage, report.coverage(level));
  return measured;
}

PlanComparison compare_with_plan(const EnergyReport& report) {
  PlanComparison comparison;
  if (!report.planned || report.planned->seconds <= 0) return comparison;
  comparison.gpu = compared(report, EnergyLevel::Gpu, report.planned->gpu_j);
  if (report.planned->node_j)
    comparison.node = compared(report, EnergyLevel::Node, *report.planned->node_j);
  return comparison;
}

std::optional<double> check_difference(const LevelMeasurement& source) {
  if (!source.counter_j || !source.integral_j || *source.integral_j <= 0) return {};
  return *source.counter_j / *source.integral_j - 1;
}

}  // namespace kintsugi
