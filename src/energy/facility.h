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

// The planner's prediction for one step of a run on all of its nodes.
struct PlannedStep {
  double seconds = 0;
  double gpu_j = 0;
  std::optional<double> node_j = {};  // empty: the machine has no node.host_w
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

}  // namespace kintsugi
