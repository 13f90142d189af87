#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_failure.h"
#include "launch/job_description.h"
#include "launch/node_ledger.h"

namespace kintsugi {

// What the supervisor of a run decides, as functions without side effects.

// One start of the ranks, from its launch to its end.
struct LaunchAttempt {
  RunEnd end = {};
  std::int64_t step = 0;   // the last step that it began
  std::int64_t saved = 0;  // step of the newest checkpoint at its end; 0: none
  double began_s = 0;      // Unix time
  double noticed_s = 0;    // when its failure was known; 0: it did not fail
  double ended_s = 0;
  double reported_s = -1;    // from its start to the first word of its ranks; -1: they gave none
  double first_step_s = -1;  // from its start to its first step; -1: it had none
  std::int64_t nodes = 1;
  bool operator==(const LaunchAttempt&) const = default;
};

struct RecoveryLimits {
  int fruitless = 3;         // attempts in a row without a newer checkpoint
  double first_pause_s = 1;  // before another attempt; three times as long after each fruitless one
  double longest_pause_s = 300;
};

// How long the ranks may take until they report. The first start may be slow (an image to unpack,
// thousands of ranks); later ones take about as long as it did, and one that hangs would waste the
// whole job meanwhile.
struct StartLimits {
  double first_s = 900;    // also the most for later starts
  double again_s = 120;    // the least for later starts
  double times_known = 5;  // the slowest start that succeeded
};
// `attempts`: of this supervisor, oldest first. `before_s`: the slowest start before them, -1 if
// none is known. Twice as long after each start that took too long.
double start_limit_s(const std::vector<LaunchAttempt>& attempts, double before_s,
                     const StartLimits& limits);

// Whether and when to start again.
struct Decision {
  std::optional<int> exit_code = {};  // end the job with it; empty: start again
  double pause_s = 0;
  std::string reason = {};
};
// `attempts`: of this job, oldest first, at least one. `saved_before`: step of the newest
// checkpoint before the first of them.
Decision decide(const std::vector<LaunchAttempt>& attempts, std::int64_t saved_before,
                const RecoveryLimits& limits);

// What a failed attempt means for the node that is at fault.
struct NodeVerdict {
  bool avoid = false;                       // in this job, if there are others
  std::optional<NodeTrouble> trouble = {};  // also by later jobs: for the ledger
};
// Nothing without a node that is known to be at fault. After an error that a rank reported itself,
// which may be one of the program or of the data, and after a file that it could not read, later
// jobs may use its node.
NodeVerdict judge_node(const RankFailure& failure);

// The state of the nodes of a job.
struct NodeStates {
  std::vector<std::string> allocated = {};  // empty: the launcher has no nodes to choose from
  std::vector<std::string> down = {};       // according to the scheduler
  std::vector<std::string> avoided = {};    // failed in this job or listed in the ledger; the ones
                                            // to use again first come last
};
// Chooses nodes: avoided ones only if there are not enough others, those that are down never. With
// too few, the largest number from min_nodes on that `fits` accepts. Nothing if there is none.
std::optional<NodeChoice> choose_nodes(const JobDescription& job, const NodeStates& states,
                                       const std::function<bool(std::int64_t nodes)>& fits);

}  // namespace kintsugi
