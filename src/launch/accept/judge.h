#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/rank_failure.h"
#include "core/table.h"
#include "launch/accept/probe.h"
#include "launch/accept/trial.h"
#include "launch/doctor/judge.h"
#include "plan/costs/collectives.h"
#include "plan/machines/machine.h"

namespace kintsugi {

// The verdicts of `kintsugi accept`: pure functions from facts to checks.

// Noted: measured, with nothing to compare it with. Incomplete: of a report, one of whose parts is
// missing.
enum class Verdict : std::uint8_t { Pass, Fail, Noted, NotMeasured, Incomplete };
std::string_view to_string(Verdict verdict);  // "pass", "FAIL", "noted", …

struct AcceptCheck {
  std::string part = {};  // "groups", "losses", …
  std::string name = {};
  Verdict verdict = Verdict::Pass;
  std::string text = {};                // what was found, one line
  std::string remedy = {};              // what to do after a failure
  std::string group = {};               // the kind of group at fault; empty: none
  std::vector<int> ranks = {};          // at fault
  std::vector<std::string> nodes = {};  // of these ranks
};
using AcceptChecks = std::vector<AcceptCheck>;
AcceptCheck not_measured(std::string part, std::string name, std::string why);

struct AcceptLimits {
  double loss = 1e-4;                  // largest relative difference of losses to those of one rank
  double norm = 1e-3;                  // the same of gradient norms
  double slow_group = 0.5;             // of the other groups' bandwidth: below it a group fails
  double overlap = 0.3;                // least part of communication that GPUs hide
  double faster = 0.8, slower = 1.25;  // measured / predicted step time, on GPUs
  double memory = 0.05;                // measured memory beside the plan's
};

// ---- the probe

// The ranks that the launch command started instead of ranks 0 to `ranks` - 1, each once.
AcceptChecks judge_ranks(const std::vector<ProbeFacts>& found, int ranks);
// Binding, devices, links, directory, clocks: each error of kintsugi doctor fails, with its ranks.
AcceptChecks judge_doctor(const Findings& findings);
// Who is in which group, and whose numbers its sums have.
AcceptChecks judge_members(const std::vector<ProbeFacts>& ranks);
// Groups of one kind and size, compared with each other.
AcceptChecks judge_bandwidths(const std::vector<ProbeFacts>& ranks, const AcceptLimits& limits);
AcceptChecks judge_overlap(const std::vector<ProbeFacts>& ranks, const AcceptLimits& limits);

// The bandwidth of the slowest group of each kind: (bytes that a rank sends) / time.
struct GroupBandwidth {
  std::string grid = {}, kind = {};
  int size = 0, groups = 0;
  Collective collective = Collective::AllReduce;
  double bytes = 0, lowest = 0, median = 0;  // bytes/s
  std::vector<int> slowest = {};             // its ranks
};
std::vector<GroupBandwidth> bandwidths_of(const std::vector<ProbeFacts>& ranks);
Table bandwidth_table(const std::vector<GroupBandwidth>& bandwidths);

// ---- training

// A case beside one rank that trained the same.
AcceptCheck judge_losses(const std::string& name, const std::string& group, const RunSteps& steps,
                         const RunSteps& one_rank, const AcceptLimits& limits);

struct SpeedFacts {
  std::string model = {}, layout = {}, layout_key = {};
  std::string why_not = {};  // empty: it was measured
  double step_s = 0, memory_bytes = 0, tokens_per_s = 0;
  double comm_busy_s = 0, comm_wait_s = 0;  // per step
  // Predicted, with the machine that was given and with the calibrated one; 0: not.
  double planned_s = 0, calibrated_s = 0, planned_bytes = 0, planned_exposed_s = 0;

  std::optional<double> overlap() const;  // fraction of communication that is hidden
};
// `gpus`: CPU cores are not judged by the plan.
AcceptChecks judge_speed(const std::vector<SpeedFacts>& facts, bool gpus,
                         const AcceptLimits& limits);
Table speed_table(const std::vector<SpeedFacts>& facts);

struct RecoveryFacts {
  std::string why_not = {};            // empty: a rank was killed
  int killed = -1;                     // its rank; -1: unknown
  std::optional<RunEnd> noticed = {};  // how the run reported it
  double notice_s = 0;                 // from the kill to the end of the launcher
  bool restarted = false;
  std::string restart_problem = {};
  double save_s = 0, restart_s = 0;  // 0: unknown
  CheckpointFiles undisturbed = {}, recovered = {};
};
AcceptChecks judge_recovery(const RecoveryFacts& facts);

// Energy of the trial `name` on `gpus` GPUs (0: none) of `machine`.
AcceptChecks judge_energy(const std::string& name, const RunSteps& steps, int gpus,
                          const GpuSpec& gpu);

// The machine with the measured links, and as many nodes and GPUs as there were if it had fewer.
Machine with_links(Machine machine, const std::vector<ProbeFacts>& ranks);

// Fits bandwidth and latency of the links of a group, inside a node or between nodes, to measured
// collectives: the largest decide the bandwidth, the smallest the latency; messages are only
// compared. `group` crosses nodes if it is larger than a node of the machine. Returns
// modelled / measured of each rate.
std::vector<double> fit_links(Machine& machine, const GroupSpread& group,
                              const std::vector<CollectiveRate>& rates);

}  // namespace kintsugi
