#pragma once

#include <optional>
#include <string>

#include "plan/search/planner.h"

namespace kintsugi {

// Energy of GPUs, nodes and facility. Values that the machine description does not allow are empty.
struct RunEnergy {
  double gpu_mwh = 0;
  std::optional<double> node_mwh = {}, facility_mwh = {};
  // CO2e of the highest known level, location- and market-based, and the name of that level.
  std::optional<double> tonnes_co2 = {}, tonnes_co2_market = {};
  std::string co2_of = {};
  std::string missing = {};  // missing keys: "node.host_w and facility.pue"
};
double highest_mwh(const RunEnergy& energy);  // of the facility, or else nodes, or else GPUs
// `host_mwh` is the energy of the hosts; 0 if unknown.
RunEnergy energy_of(double gpu_mwh, double host_mwh, const Machine& machine);

// What failures of nodes cost a run (NodeSpec::mtbf_h), and how to prepare for them.
struct RunFailures {
  double mtbf_s = 0;  // of all nodes of the run
  double failures = 0;
  double lost_s = 0;              // training that is done again
  double restarts_s = 0;          // waiting for the ranks to continue
  double gpu_hours = 0, mwh = 0;  // of both, and of idle spare nodes; energy of the highest level
  std::string mwh_of = {};        // that level: "GPUs"
  std::optional<double> euro = {};
  std::int64_t best_every = 0;    // steps between checkpoints that cost least
  std::int64_t spare_nodes = 0;   // replace all nodes that fail between repairs, with kSpareChance
  std::int64_t spares_there = 0;  // so many of them the machine has; these are idle and paid for
};
inline constexpr double kSpareChance = 0.99;

// Time, energy and cost of a whole run.
struct RunFootprint {
  double steps = 0, days = 0, gpu_hours = 0;
  double within = 1;  // StepInterval::within, of days, energy and cost too
  RunEnergy energy = {};
  std::optional<double> euro = {};
  double checkpoint_gb = 0;                  // weights and optimizer state
  std::optional<double> checkpoint_s = {};   // pause of training for one checkpoint
  StorageRate storage = {};                  // that it was computed with; 0: PlanJob::save_s
  double checkpoints = 0;                    // of the whole run; their time is part of `days`
  std::int64_t checkpoint_every = 0;         // steps
  std::optional<RunFailures> failures = {};  // all of it is part of the figures above
};
// Weights and optimizer state of one checkpoint.
double checkpoint_bytes(const PlanJob& job);
// Adds a run that follows, such as the next stage of a run. A figure is known if both have it.
// `within` becomes the mean by days: the upper end of the sum if both are wrong in one direction.
RunFootprint& operator+=(RunFootprint& total, const RunFootprint& next);
RunFootprint footprint_of(const Evaluation& evaluation, const PlanJob& job, const Machine& machine,
                          double tokens);

// Compute budget: tokens x parameters x flops_per_parameter = GPUs x time x peak x mfu. solve()
// computes the one of the first four that is 0.
struct ComputeCalculus {
  double parameters = 0, tokens = 0, gpus = 0, days = 0;
  double peak_flops = 0;           // of one GPU
  double mfu = 0;                  // by the same FLOP count
  double flops_per_parameter = 6;  // per token; 8 with full recompute
};
ComputeCalculus solve(ComputeCalculus calculus);
// 20 tokens per parameter (Hoffmann et al. 2022).
inline double chinchilla_tokens(double parameters) { return 20 * parameters; }

// Energy of the GPUs of a compute budget at `watt` each.
double gpu_joule(const ComputeCalculus& solved, double watt);

}  // namespace kintsugi
