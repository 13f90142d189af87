#include "energy/carbon.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>

namespace kintsugi {
namespace {

struct DisplayUnit {
  double size;
  const char* name;
};

// Three digits, with the largest unit that the value reaches; the units are in ascending order.
std::string in_units(double value, std::initializer_list<DisplayUnit> units) {
  const DisplayUnit* unit = units.begin();
  for (const DisplayUnit& larger : units)
    if (std::abs(value) >= larger.size * 0.9995) unit = &larger;
  const double number = value / unit->size;
  return std::abs(number) < 999.5 ? fmt::format("{:.3g} {}", number, unit->name)
                                  : fmt::format("{:.0f} {}", number, unit->name);
}

}  // namespace

CarbonFootprint carbon_of(const EnergyOf& energy, const FacilitySpec& facility) {
  const bool pue = facility.pue >= 0;
  const double joules = pue ? energy.joules * facility.pue : energy.joules;
  CarbonFootprint footprint{.of = fmt::format("{} {} PUE", energy.what, pue ? "with" : "without")};
  if (pue && energy.whole_nodes) footprint.facility_j = joules;
  if (facility.kg_co2_per_kwh >= 0) footprint.kg_co2 = to_kwh(joules) * facility.kg_co2_per_kwh;
  if (facility.kg_co2_per_kwh_market >= 0)
    footprint.kg_co2_market = to_kwh(joules) * facility.kg_co2_per_kwh_market;
  return footprint;
}

std::string energy_text(double joules) {
  if (joules < 3600) return fmt::format("{:.3g} kJ", joules / 1e3);
  if (joules < kJoulesPerMwh) return fmt::format("{:.3g} kWh", to_kwh(joules));
  return fmt::format("{:.{}f} MWh", to_mwh(joules), joules < 10 * kJoulesPerMwh ? 2 : 1);
}

std::string joules_text(double joules) {
  if (std::abs(joules) >= 1e12) return fmt::format("{:.4g} TJ", joules / 1e12);
  return in_units(joules, {{1, "J"}, {1e3, "kJ"}, {1e6, "MJ"}, {1e9, "GJ"}});
}

std::string mass_text(double kg) {
  if (kg == 0) return "0 kg";
  if (kg < 0.1) return fmt::format("{:.3g} g", 1e3 * kg);
  if (kg < 100) return fmt::format("{:.3g} kg", kg);
  return kg < 1e4 ? fmt::format("{:.2f} t", kg / 1e3) : fmt::format("{:.1f} t", kg / 1e3);
}

std::string interval_text(double within) {
  return within < kLargeInterval ? fmt::format("± {:.0f} %", 100 * (within - 1))
                                 : fmt::format("within a factor of {:.1f}", within);
}

std::string power_text(double watts) {
  return in_units(watts, {{1, "W"}, {1e3, "kW"}, {1e6, "MW"}});
}

std::string per_token_text(double joules) {
  return in_units(joules, {{1e-6, "µJ"}, {1e-3, "mJ"}, {1, "J"}});
}

}  // namespace kintsugi
