#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "energy/carbon.h"
#include "energy/meters/meter.h"

namespace kintsugi {

// Joules of each level. Empty: not measured.
using LevelJoules = ByLevel<std::optional<double>>;
// A level is known in the sum if one of the two has it.
LevelJoules& operator+=(LevelJoules& sum, const LevelJoules& other);

// What energy was used for. Each joule of a run is in one phase.
enum class EnergyPhase : std::uint8_t {
  Compute,        // steps done for the first time, without exposed communication
  Communication,  // exposed communication of these steps
  Checkpoint,
  Validation,
  Startup,
  Other,  // within an attempt: records, reloads
  Lost,   // steps that were done again or discarded, with their communication
};
inline constexpr std::array<EnergyPhase, 7> kEnergyPhases = {
    EnergyPhase::Compute,    EnergyPhase::Communication, EnergyPhase::Checkpoint,
    EnergyPhase::Validation, EnergyPhase::Startup,       EnergyPhase::Other,
    EnergyPhase::Lost};
std::string_view to_string(EnergyPhase phase);  // "compute", "communication", …

struct PhaseEnergy {
  double seconds = 0;  // of the run
  LevelJoules joules = {};
};

// How one level was measured on all nodes.
struct LevelMeasurement {
  std::string source = {};  // "nvml"; several: "nvml, amdsmi"; empty: none
  MeterKind kind = MeterKind::Counter;
  std::string reason = {};  // why the level is not measured, or why time is missing
  std::int64_t nodes = 0;   // that measured it
  double covered_s = 0;     // measured time, summed over all nodes
  // Energy of counters, and integral of sampled power over the same time; where both were read.
  std::optional<double> counter_j = {}, integral_j = {};
};

struct NodeEnergy {
  std::string name = {};
  LevelJoules joules = {};
  std::string note = {};
};

struct AttemptEnergy {
  std::int64_t first_step = 0, last_step = 0;  // finished steps at its start and at its end
  double seconds = 0;
  std::string state = {};  // as in status.json; "lost": it was killed
  LevelJoules joules = {}, lost = {};
};

// The same work before and after a change of power limit or clock.
struct PowerSettingEffect {
  struct Rate {
    double tokens_per_s = 0, joules_per_token = 0;
  };
  std::string setting = {};  // "power limit 500 W"
  EnergyLevel level = EnergyLevel::Gpu;
  Rate before = {}, after = {};
};

// The energy of a run over all of its attempts. A plain record: whoever has the ledger fills it.
struct EnergyReport {
  std::string run = {};        // name of the run
  std::string run_id = {};     // the same in all attempts
  std::string timestamp = {};  // "2026-11-16T12:00:00" (UTC)
  std::string version = {};    // of this program
  std::string gpu_model = {};
  std::int64_t nodes = 1, gpus = 0;  // of the last attempt
  double seconds = 0;                // in attempts, without queue and down time
  double node_seconds = 0;           // the same, summed over the nodes of each attempt
  std::int64_t steps = 0;            // finished, each counted once
  double tokens = 0;                 // of these steps

  std::array<PhaseEnergy, kEnergyPhases.size()> phases = {};
  std::array<LevelMeasurement, kEnergyLevels.size()> sources = {};
  std::vector<NodeEnergy> by_node = {};
  std::vector<AttemptEnergy> attempts = {};

  std::string machine = {};  // empty: unknown
  FacilitySpec facility = {};
  // The planner's prediction for all `steps`; empty: none, for the reason in `no_plan`.
  std::optional<PlannedStep> planned = {};
  std::string no_plan = kNoMachine;
  std::optional<PowerSettingEffect> power_setting = {};

  PhaseEnergy& phase(EnergyPhase p) { return phases[static_cast<std::size_t>(p)]; }
  const PhaseEnergy& phase(EnergyPhase p) const { return phases[static_cast<std::size_t>(p)]; }
  LevelMeasurement& source(EnergyLevel l) { return sources[static_cast<std::size_t>(l)]; }
  const LevelMeasurement& source(EnergyLevel l) const {
    return sources[static_cast<std::size_t>(l)];
  }

  LevelJoules total() const;       // of all phases
  PhaseEnergy productive() const;  // compute and communication
  // Measured part of the time of all nodes, 0 to 1.
  double coverage(EnergyLevel level) const;
  // The same of the time after the startup, in which meters are not read from the beginning.
  double coverage_after_startup(EnergyLevel level) const;
  // Mean power of one node while it was measured; empty: not measured.
  std::optional<double> node_watts(EnergyLevel level) const;
  std::optional<double> gpu_watts() const;  // the same of one GPU
};

// Machine, facility and the prediction for `steps` finished steps of each stage.
void add_context(const EnergyContext& context, const std::vector<std::int64_t>& steps,
                 EnergyReport& report);

std::string_view parts_name(EnergyLevel level);  // "GPUs", "CPUs", "memory", "nodes"

// The highest level that was measured: whole nodes, or the sum of the parts that were.
struct MeasuredEnergy {
  LevelJoules joules = {};
  std::vector<EnergyLevel> levels = {};  // empty: nothing was measured
  double coverage = 0;                   // the smallest of these levels
  double total() const;
  std::string what() const;  // "nodes", "GPUs and CPUs"
  EnergyOf all() const;
};
MeasuredEnergy measured_energy(const EnergyReport& report);

// The planner's prediction and the measurement of the same steps; empty where one is missing.
struct PlanComparison {
  struct Figures {
    double joules_per_token = 0, watts = 0;  // of all GPUs or nodes
  };
  struct Pair {
    Figures predicted = {}, measured = {};
  };
  std::optional<Pair> gpu = {}, node = {};
};
PlanComparison compare_with_plan(const EnergyReport& report);

// Relative difference of the counters to the integral of power; empty: not both were read.
std::optional<double> check_difference(const LevelMeasurement& source);
inline constexpr double kDoubtful = 0.05;  // a larger difference is reported

std::string to_json(const EnergyReport& report);  // energy.json
std::string to_text(const EnergyReport& report);  // a summary of some 15 lines

// One line of CodeCarbon's emissions.csv with the columns of `header`. Unknown values are empty.
std::string codecarbon_header();
std::string to_codecarbon_csv(const EnergyReport& report,
                              const std::string& header = codecarbon_header());
// Writes this line into a file, instead of an earlier one of the same run. An existing file keeps
// its columns and its other lines.
void write_codecarbon(const std::filesystem::path& file, const EnergyReport& report);

}  // namespace kintsugi
