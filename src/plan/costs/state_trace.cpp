#include "plan/costs/state_trace.h"

#include <algorithm>

#include "backend/sim/sim_backend.h"
#include "comm/sim/sim_communicator.h"
#include "parallel/copy_sums.h"
#include "parallel/layout.h"
#include "parallel/sharding.h"

namespace kintsugi {
namespace {

// All layers of a kind are sharded in the same way, so from two on everything is linear in their
// number: more are extrapolated.
constexpr int kExactLayers = 3;

// Layers of the model, as many of each kind, in order.
std::vector<int> layers_of(const ModelLayers& model, const StageContents& stage) {
  std::vector<int> layers, left = stage.layers;
  for (int layer = 0; layer < static_cast<int>(model.kinds.size()); ++layer)
    if (left[model.kind(layer)]-- > 0) layers.push_back(layer);
  return layers;
}

StateTrace traced(const PlanJob& job, const ModelLayers& model, const Layout& layout,
                  const StageContents& stage, const Coordinates& coordinates,
                  StateOffload offload) {
  // The host's update is not planned: what it costs depends on the host's cores.
  offload.update = UpdateLocation::Device;
  OperationTrace trace;
  SimBackend backend(trace, job.classifier_elements);
  const Groups groups = sim_groups(grid_of(layout, job.model), coordinates, trace);
  Arena arena(backend);
  ModelShard shard{.tp = layout.tp,
                   .tp_rank = coordinates.tp,
                   .sequence_parallel = layout.sequence_parallel,
                   .experts = layout.expert_ranks(),
                   .embedding = stage.embedding,
                   .head = stage.head};
  shard.layers = layers_of(model, stage);
  const ParameterSet set(job.model, model.spec(), shard);
  Sharding sharding(
      backend, arena, set, groups,
      {.zero = layout.zero,
       .precision = job.precision,
       .reduce_in_bf16 = job.reduce_in_bf16,
       .tied = job.model.tied,
       .halved_backward = layout.pp > 1 && layout.schedule == PipelineKind::ZeroBubbleH1,
       .offload_gradients = offload.gradients,
       .keep_fp8_weights = job.model.fp8.keep_weights,
       .unrounded_fp8_weights = !offload.on && !offload.gradients});
  CopySums copies(backend, arena, sharding, groups);
  Optimizer optimizer(backend, arena, sharding, job.optimizer, offload);
  StateTrace state;
  state.memory = bytes_by_region(arena);
  state.host = bytes_by_region(arena, Side::Host);
  state.parameters = static_cast<double>(set.buffer_elements());
  const int buckets = static_cast<int>(set.buckets().size());
  for (int bucket = 0; bucket < buckets; ++bucket) {
    const Bucket& one = set.buckets()[static_cast<std::size_t>(bucket)];
    if (one.role != Bucket::Role::Block || one.layer != shard.layers.back()) continue;
    const double elements =
        static_cast<double>(sharding.shard_elements(bucket)) * sharding.shard(bucket).size();
    const DType wide = accumulator_of(job.precision);
    StateTrace::LayerBytes& bytes = state.layer[one.data.shard];
    bytes.weights += elements * static_cast<double>(size_of(job.precision));
    if (one.trained)
      bytes.gradients +=
          elements * static_cast<double>(size_of(job.reduce_in_bf16 ? DType::BF16 : wide));
  }
  trace = {};
  for (int bucket = buckets - 1; bucket >= 0; --bucket) {
    sharding.need_gradients(bucket, false);
    sharding.done_with_gradients(bucket, false, true);
  }
  sharding.finish_gradients();
  copies.run();
  optimizer.step(1, 1e-3, 1);
  sharding.finish_weights();
  for (const TracedOperation& operation : trace.operations) {
    if (operation.kind == TracedOperation::Kind::Memory) {
      state.step_bytes[operation.name] += operation.bytes;
      state.step_kernels += 1;
    } else if (operation.kind == TracedOperation::Kind::Matmul) {
      state.step_matmuls.push_back(operation);
    } else if (operation.kind == TracedOperation::Kind::Collective) {
      StateTrace::Traffic& traffic = state.traffic[{operation.group, operation.collective}];
      traffic.calls += 1;
      traffic.bytes += operation.bytes;
    }
  }
  return state;
}

// sum += n (b - a)
void add_difference(StateTrace& sum, int n, const StateTrace& b, const StateTrace& a) {
  sum.memory = sum.memory + n * (b.memory - a.memory);
  sum.host = sum.host + n * (b.host - a.host);
  for (const auto& [name, bytes] : b.step_bytes) {
    const auto from = a.step_bytes.find(name);
    sum.step_bytes[name] += n * (bytes - (from == a.step_bytes.end() ? 0 : from->second));
  }
  sum.step_kernels += n * (b.step_kernels - a.step_kernels);
  sum.parameters += n * (b.parameters - a.parameters);
  for (const auto& [key, traffic] : b.traffic) {
    const auto at = a.traffic.find(key);
    const StateTrace::Traffic from = at == a.traffic.end() ? StateTrace::Traffic{} : at->second;
    StateTrace::Traffic& to = sum.traffic[key];
    to.calls += n * (traffic.calls - from.calls);
    to.bytes += n * (traffic.bytes - from.bytes);
  }
}

}  // namespace

TrafficUse use_of(GroupKind group, Collective collective) {
  const bool over_shard = group == GroupKind::Shard || group == GroupKind::ExpertsShard;
  const bool over_replica = group == GroupKind::Replica || group == GroupKind::ExpertsReplica;
  if (over_shard && collective == Collective::AllGather) return TrafficUse::Weights;
  // Whole matrices are exchanged during the update (MatrixUpdates).
  if (collective == Collective::AllToAll || (over_replica && collective == Collective::Broadcast))
    return TrafficUse::Matrices;
  return over_shard     ? TrafficUse::ScatteredGradients
         : over_replica ? TrafficUse::ReducedGradients
                        : TrafficUse::Sums;
}

StageContents stage_contents(const ModelLayers& model, const std::vector<StageLayers>& chunks) {
  StageContents contents{std::vector<int>(model.first.size()), chunks.front().embedding,
                         chunks.back().head};
  for (const StageLayers& chunk : chunks)
    for (int layer = chunk.first_layer; layer < chunk.last_layer; ++layer)
      ++contents.layers[model.kind(layer)];
  return contents;
}

StateTrace trace_state(const PlanJob& job, const ModelLayers& model, const Layout& layout,
                       const StageContents& stage, const Coordinates& coordinates,
                       const StateOf& known, const StateOffload& offload) {
  // Which rank transforms which matrix is not linear in the number of layers, and neither is the
  // size of the buffers of offloaded state.
  if (job.optimizer.kind == OptimizerKind::Muon || offload.on || offload.gradients)
    return traced(job, model, layout, stage, coordinates, offload);
  StageContents few = stage;
  for (int& count : few.layers)
    if (count > kExactLayers) count = kExactLayers - 1;
  if (few == stage) return traced(job, model, layout, stage, coordinates, {});
  const auto state = [&](const StageContents& contents) {
    return known ? known(contents) : traced(job, model, layout, contents, coordinates, {});
  };
  const StateTrace base = state(few);
  StateTrace sum = base;
  for (std::size_t kind = 0; kind < few.layers.size(); ++kind) {
    const int more = stage.layers[kind] - few.layers[kind];
    if (more == 0) continue;
    StageContents next = few;
    ++next.layers[kind];
    add_difference(sum, more, state(next), base);
  }
  return sum;
}

}  // namespace kintsugi
