#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "model/metrics.h"
#include "plan/costs/costs.h"
#include "plan/costs/memory.h"
#include "plan/costs/pipeline_time.h"

namespace kintsugi {

// What a layout will cost. Times are of one step.
struct Evaluation {
  Layout layout;
  double memory_bytes = 0;  // of the fullest rank, with what the device keeps for itself
  int fullest_stage = 0;
  bool fits = false;
  double step_s = 0;
  double ideal_s = 0;    // computation alone, on the slowest stage
  double bubble = 0;     // share of the step in which the slowest stage waits for others
  double tensor_s = 0;   // waited for tensor and context ranks
  double data_s = 0;     // waited for gradients and weights of data ranks
  double message_s = 0;  // waited for messages between stages
  double optimizer_s = 0;
  double other_s = 0;      // logging, data that come too late
  double slow_chance = 0;  // that the run meets the network's slow messages,
  double slow_s = 0;       // and what they cost; counted where every second run meets them
  double tokens_per_s_per_gpu = 0;
  double mfu_causal = 0, mfu_full = 0;
  // Per step, all of them. Where the machine's host_w is not known, nodes have what GPUs have.
  double gpu_joule = 0, node_joule = 0;

  double exposed_s() const { return tensor_s + data_s + message_s; }
};

// Evaluates layouts of one job on one machine. Everything that layouts share is traced once.
class Planner {
 public:
  Planner(PlanJob job, Machine machine, Software software = {});

  Evaluation evaluate(const Layout& layout);
  // The same without the memory.
  Evaluation timing(const Layout& layout);
  // By stage; of the whole arena.
  std::vector<RegionBytes> memory(const Layout& layout);

  const PlanJob& job() const { return job_; }
  const Machine& machine() const { return machine_; }
  const Software& software() const { return software_; }

 private:
  struct BlockCost {
    TraceCost forward, backward;
    double weight_share = 0.5;
  };
  struct PassCost {
    PassTrace trace;
    BlockCost plain, recomputed, sliding_plain, sliding_recomputed;
    TraceCost embedding_forward, embedding_backward, head;
  };
  struct Stages {  // of a layout
    std::vector<std::vector<StagePart>> parts;
    std::vector<StatePart> state;
  };
  struct StageCost {
    TraceCost forward, backward;
    double shard_s = 0;  // waited for sharded weights and gradients, in both
  };
  using PassKey = std::tuple<int, int, bool, std::int64_t, Recompute, bool>;
  using StateKey = std::tuple<int, int, bool, int, int, int, bool, StatePart>;

  const PassCost& pass(const Layout& layout);
  const StateTrace& state(const Layout& layout, const StatePart& part, int stage);
  const std::vector<HeldPasses>& held(const Layout& layout);
  const Stages& stages(const Layout& layout);
  GroupLinks links(const Layout& layout, GroupKind kind) const;
  BlockCost block_cost(const BlockTrace& trace, const Software& software,
                       const LinksOf& links) const;
  StageCost stage_cost(const Layout& layout, const PassCost& pass, int stage);
  double message_s(const Layout& layout, const PassCost& pass) const;
  StageTimes stage_times(const Layout& layout, const std::vector<StageCost>& costs,
                         double message) const;
  void add_data(const Layout& layout, const std::vector<StageCost>& costs, Evaluation& e);
  void finish(Evaluation& e, double busy_s) const;

  PlanJob job_;
  Machine machine_;
  Software software_;
  TrainingFlops flops_;
  std::map<PassKey, std::unique_ptr<PassCost>> passes_;
  std::map<StateKey, StateTrace> states_;
  std::map<std::tuple<PipelineKind, int, int, int>, std::vector<HeldPasses>> held_;
  std::map<std::tuple<int, int, std::vector<int>>, Stages> stages_;
};

}  // namespace kintsugi
