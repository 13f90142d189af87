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
// `host_mwh` is the energy of the hosts; 0 if unknown.
RunEnergy energy_of(double gpu_mwh, double host_mwh, const Machine& machine);

// Time, energy and cost of a whole run.
struct RunFootprint {
  double steps = 0, days = 0, gpu_hours = 0;
  RunEnergy energy = {};
  std::optional<double> euro = {};
  double checkpoint_gb = 0;                 // weights and optimizer state
  std::optional<double> checkpoint_s = {};  // pause of training for one checkpoint
  StorageRate storage = {};                 // that it was computed with
  double checkpoints = 0;                   // of the whole run; their time is part of `days`
};
// Weights and optimizer state of one checkpoint.
double checkpoint_bytes(const PlanJob& job);
// Adds a run that follows, such as the next stage of a run. A figure is known if both have it.
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
