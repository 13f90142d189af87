#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// What turns the energy of nodes into that of a facility, into CO2e and into a price. -1: unknown.
struct FacilitySpec {
  double pue = -1;
  double kg_co2_per_kwh = -1;         // of the grid (location-based)
  double kg_co2_per_kwh_market = -1;  // of the contract for electricity (market-based)
  std::string co2_source = {};        // of the factors: place, year, publication
  double eur_per_gpu_hour = -1;
  bool operator==(const FacilitySpec&) const = default;
};

// A value that may be off by this factor: "± 14 %", and from kLargeInterval on "within a factor of
// 2.9".
inline constexpr double kLargeInterval = 1.6;
std::string interval_text(double within);

// The planner's prediction for one step of a run on all of its nodes.
struct PlannedStep {
  double seconds = 0;
  double gpu_j = 0;
  std::optional<double> node_j = {};  // empty: the machine has no node.host_w
  double within = 1;  // 90 % interval: `seconds` may be off by this factor; 1: unknown
  bool operator==(const PlannedStep&) const = default;
};

inline constexpr const char* kNoMachine = "energy.machine is not set";

// What is known in advance about the energy of a run.
struct EnergyContext {
  std::string machine = {};  // its name; empty: unknown
  FacilitySpec facility = {};
  std::vector<PlannedStep> planned = {};  // of each stage of the run; empty: no prediction
  std::string no_plan = kNoMachine;       // why there is none
};

// Arithmetic of energy and CO2e, for plans and for measured runs alike.

inline constexpr double kJoulesPerKwh = 3.6e6;
inline constexpr double kJoulesPerMwh = 3.6e9;

constexpr double to_kwh(double joules) { return joules / kJoulesPerKwh; }
constexpr double to_mwh(double joules) { return joules / kJoulesPerMwh; }
constexpr double from_mwh(double mwh) { return mwh * kJoulesPerMwh; }

// The energy of one level of nodes: of GPUs alone, of parts, or of whole nodes.
struct EnergyOf {
  double joules = 0;
  std::string what = {};  // "GPUs", "nodes"
  bool whole_nodes = false;
};

// Energy at the meter of the facility and CO2e. What the facility's description lacks is empty.
struct CarbonFootprint {
  std::optional<double> facility_j = {};  // of whole nodes with PUE
  // CO2e of the energy that `of` names. It has the PUE if that is known.
  std::optional<double> kg_co2 = {}, kg_co2_market = {};
  std::string of = {};  // "nodes with PUE", "GPUs without PUE"
};
CarbonFootprint carbon_of(const EnergyOf& energy, const FacilitySpec& facility);

// For people, with a unit that fits.
std::string energy_text(double joules);     // "3.2 kJ", "12.5 kWh", "4902.8 MWh"
std::string joules_text(double joules);     // "17.65 TJ", "284 GJ"
std::string mass_text(double kg);           // "310 g", "12.5 kg", "1.40 t"
std::string power_text(double watts);       // "635 W", "22.4 kW", "3.1 MW"
std::string per_token_text(double joules);  // "83 mJ", "5.04 J"

}  // namespace kintsugi
