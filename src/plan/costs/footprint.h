#pragma once

#include <optional>
#include <string>

#include "plan/search/planner.h"

namespace kintsugi {

// Levels of energy are kept apart. What the machine's description does not say is empty.
struct RunEnergy {
  double gpu_mwh = 0;
  std::optional<double> node_mwh = {}, facility_mwh = {};
  // Of the grid for the highest level that is known, and in words which that is.
  std::optional<double> tonnes_co2 = {};
  std::string co2_of = {};
  std::string missing = {};  // "node.host_w and facility.pue"; empty: nothing
};
// `host_mwh` is what the hosts take, 0 where that is not known.
RunEnergy energy_of(double gpu_mwh, double host_mwh, const Machine& machine);

// What a whole run takes.
struct RunFootprint {
  double steps = 0, days = 0, gpu_hours = 0;
  RunEnergy energy = {};
  std::optional<double> euro = {};
  double checkpoint_gb = 0;                 // weights and the optimizer's state
  std::optional<double> checkpoint_s = {};  // that training stands still for one
  double checkpoints = 0;                   // of the whole run; their time is in `days`
};
RunFootprint footprint_of(const Evaluation& evaluation, const PlanJob& job, const Machine& machine,
                          double tokens);

// Compute calculus: tokens x parameters x flops_per_parameter = GPUs x time x peak x mfu. Exactly
// one of the first four is 0 and is filled in.
struct ComputeCalculus {
  double parameters = 0, tokens = 0, gpus = 0, days = 0;
  double peak_flops = 0;           // of one GPU
  double mfu = 0;                  // with the same count of FLOPs
  double flops_per_parameter = 6;  // per token; 8 with full recompute
};
ComputeCalculus solve(ComputeCalculus calculus);
// 20 tokens per parameter (Hoffmann et al. 2022).
inline double chinchilla_tokens(double parameters) { return 20 * parameters; }

// Energy of GPUs that draw `watt` each while a calculus runs.
double gpu_joule(const ComputeCalculus& solved, double watt);

}  // namespace kintsugi
