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
#include "plan/search/step_replay.h"

namespace kintsugi {

// The predicted cost of a layout. Times are per step.
struct Evaluation {
  Layout layout;
  double memory_bytes = 0;  // of the fullest rank, with context and libraries
  int fullest_stage = 0;
  bool fits = false;
  // What is kept in host memory, and how much of it by the rank that needs most.
  StateOffload offload = {};
  double host_bytes = 0;
  double step_s = 0;
  double ideal_s = 0;                                  // compute of the slowest stage
  double matmul_s = 0, attention_s = 0, memory_s = 0;  // its operations by what limits them
  double bubble = 0;       // fraction of the step in which the slowest stage is idle
  double tensor_s = 0;     // exposed tp and cp communication
  double data_s = 0;       // exposed dp communication of gradients and weights
  double message_s = 0;    // exposed pp communication
  double offload_s = 0;    // copies to and from host memory that do not overlap with compute
  double optimizer_s = 0;  // with fp8: and the quantization of the weights
  double other_s = 0;      // logging, late data
  double tokens_per_s_per_gpu = 0;
  double mfu_causal = 0, mfu_full = 0;
  // Per step, of all GPUs and nodes. If the machine's host_w is unknown, both are equal.
  double gpu_joule = 0, node_joule = 0;

  double exposed_s() const { return tensor_s + data_s + message_s; }
};
// The layout, and what is offloaded: "tp4 pp2 dp8 micro1 zero1 offload-optimizer".
std::string to_string(const Evaluation& evaluation);

// Seconds to read the tokens of one step from storage and to prepare them on the hosts. Loading is
// ahead of training: a step waits only if loading takes longer than the step.
double loading_s(const PlanJob& job, const Layout& layout, const Machine& machine);

// Evaluates layouts of one job on one machine. Traces that several layouts share are made once.
class Planner {
 public:
  Planner(PlanJob job, Machine machine, Software software = {});

  // With `offload`, state or gradients are in host memory, and updated on the device.
  Evaluation evaluate(const Layout& layout, const StateOffload& offload = {});
  // The same in a tenth of the time: a pipeline takes as long as one with equal chunks.
  Evaluation estimate(const Layout& layout, const StateOffload& offload = {});
  // Evaluates everything except the memory.
  Evaluation timing(const Layout& layout, const StateOffload& offload = {});
  // The arena of each stage.
  std::vector<RegionBytes> memory(const Layout& layout, const StateOffload& offload = {});

  // The step of an evaluation without offload, for kintsugi-simulate.
  StepReplay replay(const Evaluation& evaluation);

  const PlanJob& job() const { return job_; }
  const Machine& machine() const { return machine_; }
  const Software& software() const { return software_; }

 private:
  struct BlockCost {
    TraceCost forward, backward;
    double weight_share = 0.5;
    double first_s = 0;  // what the first forward of a step takes longer
  };
  struct LayerCosts {
    BlockCost plain, recomputed;
  };
  struct MicroBatchCost {
    MicroBatchTrace trace;
    std::vector<LayerCosts> layers;  // by kind
    double weight_share = 0;         // mean of all layers
    TraceCost embedding_forward, embedding_backward, head;
  };
  struct Stages {
    std::vector<std::vector<StageLayers>> chunks;  // of each stage
    std::vector<StageContents> contents;
  };
  struct StageCost {
    TraceCost forward, backward;
    double shard_s = 0;  // exposed communication of sharded weights and gradients, in both
    double host_s = 0;   // exposed copies of offloaded gradients
    double first_s = 0;  // once per step: the weights become fp8
  };
  using MicroBatchKey =
      std::tuple<int, int, ContextMethod, int, Dispatch, bool, std::int64_t, Recompute, bool, int>;
  using StateKey = std::tuple<int, int, int, bool, int, int, bool, bool, bool, bool, StageContents>;

  class ReplayWriter;

  const MicroBatchCost& micro_batch_cost(const Layout& layout);
  const StateTrace& state(const Layout& layout, const StateOffload& offload,
                          const StageContents& contents, int stage);
  const std::vector<HeldMicroBatches>& held(const Layout& layout);
  const Stages& stages(const Layout& layout);
  GroupLinks links(const Layout& layout, GroupKind kind) const;
  enum class PipelineAs : std::uint8_t { EqualChunks, Executed };
  Evaluation timing(const Layout& layout, const StateOffload& offload, PipelineAs as);
  Evaluation with_memory(Evaluation e);
  BlockCost block_cost(const BlockTrace& trace, const Software& software,
                       const LinksOf& links) const;
  LayerCosts layer_costs(const LayerTraces& traces, Recompute recompute, const Software& software,
                         const LinksOf& links) const;
  StageCost chunk_cost(const Layout& layout, const MicroBatchCost& cost,
                       const StageLayers& chunk) const;
  StageCost stage_cost(const Layout& layout, const StateOffload& offload,
                       const MicroBatchCost& cost, int stage);
  double host_copy_s(std::int64_t bytes) const;
  double message_s(const Layout& layout, const MicroBatchCost& cost) const;
  StageTimes stage_times(const Layout& layout, const std::vector<StageCost>& costs,
                         double message) const;
  std::vector<ChunkTimes> chunk_times(const Layout& layout, const MicroBatchCost& cost, int stage,
                                      const StageCost& of_stage);
  void add_data(const Layout& layout, const std::vector<StageCost>& costs, Evaluation& e);
  double offload_wait_s(const Evaluation& e, const std::vector<StageCost>& costs);
  void finish(Evaluation& e, double busy_s) const;

  PlanJob job_;
  Machine machine_;
  Software software_;
  TrainingFlops flops_;
  ModelLayers layers_;
  std::map<MicroBatchKey, std::unique_ptr<MicroBatchCost>> micro_batch_costs_;
  std::map<StateKey, StateTrace> states_;
  std::map<std::tuple<PipelineKind, int, int, int>, std::vector<HeldMicroBatches>> held_;
  std::map<std::tuple<int, int, std::vector<int>>, Stages> stages_;
};

}  // namespace kintsugi
