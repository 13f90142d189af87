#include "plan/search/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/layout.h"

namespace kintsugi {

double loading_s(const PlanJob& job, const Layout& l, const Machine& machine) {
  // Every rank reads the sequences of its data rank; a node reads shared sequences once.
  const double gpus = static_cast<double>(machine.node.gpus);
  const double nodes = std::max(1.0, l.ranks() / gpus);
  const double data_ranks = std::clamp(gpus / (l.tp * l.cp), 1.0, static_cast<double>(l.dp));
  const double per_node = job.tokens() * data_ranks / l.dp;
  // The width of tokens in a token store.
  const double token_bytes = job.model.vocab_size <= 65536 ? 2 : 4;
  double seconds = 0;
  if (machine.storage_gb_s > 0)
    seconds = nodes * per_node * token_bytes / (machine.storage_gb_s * 1e9);
  if (machine.node.loader_mtokens_s > 0)
    seconds = std::max(seconds, per_node / (machine.node.loader_mtokens_s * 1e6));
  return seconds;
}

namespace {

// The part of a node's memory that may have offloaded state; the rest is for programs, saves and
// files. Assumed.
constexpr double kOffloadable = 0.8;

std::int64_t at(const RegionBytes& bytes, Region region) {
  return bytes[static_cast<std::size_t>(region)];
}

}  // namespace

std::string to_string(const Evaluation& e) {
  return to_string(e.layout) + (e.offload.on ? " offload-optimizer" : "") +
         (e.offload.gradients ? " offload-gradients" : "");
}

Planner::Planner(PlanJob job, Machine machine, Software software)
    : job_(std::move(job)),
      machine_(std::move(machine)),
      software_(std::move(software)),
      flops_(training_flops_per_token(job_.model, job_.length)),
      layers_(job_.model) {
  if (job_.model.fp8.on() && machine_.gpu.fp8_tflops == 0)
    user_error("{} has no fp8 matmuls ({} without gpu.fp8_tflops): plan with bf16", machine_.name,
               machine_.gpu.name);
}

// ---- traces and costs that layouts share

GroupLinks Planner::links(const Layout& l, GroupKind kind) const {
  // Messages go to the next stage; tied embeddings are in the first stage and the last one.
  const bool ends = kind == GroupKind::Pp || kind == GroupKind::Tied;
  const GroupMembership group =
      group_position(grid_of(l, job_.model), ends ? GroupKind::Pp : kind, {});
  const bool far = kind == GroupKind::Tied && group.size * group.stride > machine_.node.gpus;
  return links_of(machine_, {ends ? std::min(group.size, 2) : group.size,
                             far ? group.stride * (group.size - 1) : group.stride});
}

Planner::BlockCost Planner::block_cost(const BlockTrace& trace, const Software& software,
                                       const LinksOf& links) const {
  const auto cost = [&](const OperationTrace& t) { return cost_of(machine_, software, t, links); };
  const double input = cost(trace.backward_input).total_s,
               weight = cost(trace.backward_weight).total_s;
  BlockCost block{cost(trace.forward), cost(trace.backward), weight / (input + weight)};
  if (!trace.first_forward.operations.empty())
    block.first_s = cost(trace.first_forward).total_s - block.forward.total_s;
  return block;
}

Planner::LayerCosts Planner::layer_costs(const LayerTraces& traces, Recompute recompute,
                                         const Software& software, const LinksOf& links) const {
  const BlockCost plain = block_cost(traces.plain, software, links);
  return {plain,
          recompute == Recompute::None ? plain : block_cost(traces.recomputed, software, links)};
}

const Planner::MicroBatchCost& Planner::micro_batch_cost(const Layout& l) {
  const bool slow_host =
      software_.pipeline_host_us > 0 && l.pp > 1 && l.ranks() > machine_.node.gpus;
  // Where fp8 weights come from: master weights, a copy of all, or one that is gathered.
  const bool owns_all = grid_of(l, job_.model).shard() == 1;
  const int fp8_source = !job_.model.fp8.on() || owns_all ? 0 : l.zero == 3 ? 2 : 1;
  auto& entry =
      micro_batch_costs_[{l.tp, l.cp, l.context, l.expert_ranks(), l.dispatch, l.sequence_parallel,
                          l.micro_batch, l.recompute, slow_host, fp8_source}];
  if (entry) return *entry;
  entry = std::make_unique<MicroBatchCost>();
  entry->trace = trace_micro_batch(job_, layers_, l);
  Software software = software_;
  if (slow_host) software.collective_host_us += l.tp * software.pipeline_host_us;
  std::map<std::string, GroupLinks> of_groups;
  const LinksOf links = [&](const std::string& group) -> const GroupLinks& {
    const auto found = of_groups.find(group);
    if (found != of_groups.end()) return found->second;
    return of_groups.emplace(group, this->links(l, parse_group_kind(group))).first->second;
  };
  const auto cost = [&](const OperationTrace& t) { return cost_of(machine_, software, t, links); };
  const MicroBatchTrace& t = entry->trace;
  for (const LayerTraces& traces : t.layers)
    entry->layers.push_back(layer_costs(traces, l.recompute, software, links));
  for (const int kind : layers_.kinds)
    entry->weight_share += entry->layers[static_cast<std::size_t>(kind)].recomputed.weight_share /
                           static_cast<double>(layers_.kinds.size());
  entry->embedding_forward = cost(t.embedding_forward);
  entry->embedding_backward = cost(t.embedding_backward);
  entry->head = cost(t.head);
  if (t.head_extra > 0) {
    TraceCost more = entry->head;
    more += -1 * cost(t.head_half);
    entry->head += t.head_extra * more;
  }
  return *entry;
}

const StateTrace& Planner::state(const Layout& l, const StateOffload& offload,
                                 const StageContents& contents, int stage) {
  const bool halved = l.pp > 1 && l.schedule == PipelineKind::ZeroBubbleH1;
  const StateKey key{l.tp,       l.cp * l.dp,       l.expert_ranks(), l.sequence_parallel,
                     l.zero,     l.shard_group,     l.pp > 1,         halved,
                     offload.on, offload.gradients, contents};
  const auto found = states_.find(key);
  if (found != states_.end()) return found->second;
  const StateOf known = [&](const StageContents& few) { return state(l, offload, few, stage); };
  return states_
      .emplace(key, trace_state(job_, layers_, l, contents, {.pp = stage}, known, offload))
      .first->second;
}

const std::vector<HeldMicroBatches>& Planner::held(const Layout& l) {
  const int m = static_cast<int>(micro_batches_per_step(l, job_.batch));
  const PipelineShape shape =
      l.pp == 1 ? PipelineShape{} : PipelineShape{l.schedule, l.pp, m, l.chunks};
  auto& entry = held_[{shape.kind, shape.stages, shape.micro_batches, shape.chunks}];
  if (entry.empty()) entry = pipeline_micro_batches(shape);
  return entry;
}

const Planner::Stages& Planner::stages(const Layout& l) {
  Stages& entry = stages_[{l.pp, l.chunks, l.split}];
  if (!entry.chunks.empty()) return entry;
  const std::vector<int> split = checked_split(job_.model, l.pp * l.chunks, l.split);
  for (int stage = 0; stage < l.pp; ++stage) {
    entry.chunks.push_back(stage_layers(split, l.pp, stage));
    entry.contents.push_back(stage_contents(layers_, entry.chunks.back()));
  }
  return entry;
}

// ---- memory

std::vector<RegionBytes> Planner::memory(const Layout& l, const StateOffload& offload) {
  const MicroBatchCost& p = micro_batch_cost(l);
  const Stages& all = stages(l);
  const auto& all_held = held(l);
  std::vector<RegionBytes> bytes;
  for (std::size_t stage = 0; stage < all.chunks.size(); ++stage)
    bytes.push_back(rank_memory(job_, layers_, l, p.trace,
                                state(l, offload, all.contents[stage], static_cast<int>(stage)),
                                all.chunks[stage], all_held[stage]));
  return bytes;
}

// ---- time

// What its operations take.
Planner::StageCost Planner::chunk_cost(const Layout& l, const MicroBatchCost& p,
                                       const StageLayers& chunk) const {
  StageCost cost;
  for (int layer = chunk.first_layer; layer < chunk.last_layer; ++layer) {
    const LayerCosts& of = p.layers[layers_.kind(layer)];
    const BlockCost& block = layer % l.recompute_every == 0 ? of.recomputed : of.plain;
    cost.forward += block.forward;
    cost.backward += block.backward;
    cost.first_s += block.first_s;
  }
  if (chunk.embedding) {
    cost.forward += p.embedding_forward;
    cost.backward += p.embedding_backward;
  }
  if (chunk.head) cost.forward += p.head;  // includes the backward of the head
  return cost;
}

Planner::StageCost Planner::stage_cost(const Layout& l, const StateOffload& offload,
                                       const MicroBatchCost& p, int stage) {
  const Stages& all = stages(l);
  StageCost cost;
  int layers = 0;
  for (const StageLayers& chunk : all.chunks[static_cast<std::size_t>(stage)]) {
    layers += chunk.last_layer - chunk.first_layer;
    const StageCost of = chunk_cost(l, p, chunk);
    cost.forward += of.forward;
    cost.backward += of.backward;
    cost.first_s += of.first_s;
  }
  add_heat(machine_.gpu, cost.forward, cost.backward);
  const StateTrace& held = state(l, offload, all.contents[static_cast<std::size_t>(stage)], stage);
  if (software_.accumulation_bytes > 0) {
    const double accumulation_s =
        memory_s(machine_.gpu, software_,
                 software_.accumulation_bytes * held.parameters / software_.elementwise);
    cost.backward.memory_s += accumulation_s;
    cost.backward.total_s += accumulation_s;
  }
  // The gradients of a layer leave while those of earlier micro-batches arrive. On an H200 this did
  // not overlap with compute: a layer waits for the buffer of the layer before (bench/README.md).
  if (offload.gradients) {
    cost.host_s = host_copy_s(at(held.host, Region::Gradients));
    cost.backward.total_s += cost.host_s;
  }
  // ZeRO 3 gathers a layer while the previous one computes; ZeRO 2 and 3 and offloaded gradients
  // are reduce-scattered after every backward.
  if ((l.zero < 2 && !offload.gradients) || l.dp * l.cp == 1) return cost;
  const double calls = software_.layer_calls, slower = calls * software_.communication;
  const double wire = software_.gradient_wire > 0 ? software_.gradient_wire / 4 : 1;
  double gather = 0, scatter = 0;
  for (const auto& [group, bytes] : held.layer) {
    const GroupLinks shard = links(l, group);
    if (l.zero == 3)
      gather += slower * collective_s(shard, Collective::AllGather, bytes.weights / calls);
    scatter +=
        slower * collective_s(shard, Collective::ReduceScatter, wire * bytes.gradients / calls);
  }
  const double forward = cost.forward.total_s / layers, backward = cost.backward.total_s / layers;
  const double wait_forward = layers * std::max(0.0, gather - software_.overlaps_gather * forward);
  const double wait_backward =
      layers * std::max(0.0, gather + scatter - software_.overlaps_data * backward);
  cost.shard_s = wait_forward + wait_backward + (l.zero == 3 ? gather : 0);
  cost.forward.total_s += wait_forward + (l.zero == 3 ? gather : 0);
  cost.backward.total_s += wait_backward;
  return cost;
}

// Adds the collectives that run once per step. A stage waits only for the part that does not
// overlap with its own last backward and those of the previous stages.
void Planner::add_data(const Layout& l, const std::vector<StageCost>& costs, Evaluation& e) {
  const Stages& all = stages(l);
  const double hides = l.zero > 0 && software_.overlaps_sharded >= 0 ? software_.overlaps_sharded
                                                                     : software_.overlaps_data;
  double before_backward = 0, before_forward = 0, waits = 0, gathers = 0, optimizer = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const StateTrace& held = state(l, e.offload, all.contents[i], static_cast<int>(i));
    double gradients = 0, weights = 0, small = 0, matrices = 0;
    for (const auto& [key, traffic] : held.traffic) {
      const auto& [name, collective] = key;
      const GroupKind group = parse_group_kind(name);
      const TrafficUse use = use_of(group, collective);
      if (use == TrafficUse::ScatteredGradients && (l.zero >= 2 || e.offload.gradients))
        continue;  // counted per micro-batch
      const bool of_gradients =
          use == TrafficUse::ScatteredGradients || use == TrafficUse::ReducedGradients;
      const double wire =
          of_gradients && software_.gradient_wire > 0 ? software_.gradient_wire / 4 : 1;
      const double time =
          software_.communication * traffic.calls *
          collective_s(links(l, group), collective, wire * traffic.bytes / traffic.calls);
      (use == TrafficUse::Matrices  ? matrices
       : use == TrafficUse::Weights ? weights
       : of_gradients               ? gradients
                                    : small) += time;
    }
    for (const TracedOperation& operation : held.step_matmuls)
      matrices += operation_s(machine_.gpu, software_, operation);
    double step_bytes = 0;  // as many as would take the time at a speed of 1
    for (const auto& [name, bytes] : held.step_bytes)
      step_bytes += bytes / machine_.gpu.speed(name);
    waits =
        std::max(waits, small + gradients - before_backward - hides * costs[i].backward.total_s);
    gathers = std::max(
        gathers, weights - before_forward - software_.overlaps_gather * costs[i].forward.total_s);
    optimizer =
        std::max(optimizer, memory_s(machine_.gpu, software_, step_bytes / software_.elementwise) +
                                held.step_kernels * machine_.gpu.launch_us * 1e-6 + matrices +
                                costs[i].first_s);
    before_backward += costs[i].backward.total_s;
    before_forward += costs[i].forward.total_s;
  }
  e.data_s += waits + gathers;
  e.optimizer_s = optimizer;
}

// 0 if the bandwidth is unknown.
double Planner::host_copy_s(std::int64_t bytes) const {
  if (machine_.node.host_link_gb_s == 0) return 0;
  return static_cast<double>(bytes) / (machine_.node.host_link_gb_s * 1e9);
}

// Offloaded state is on its way in both directions at once, gradients only to the device. The
// update of a layer waits until the next forward needs it; that of whole matrices does not.
double Planner::offload_wait_s(const Evaluation& e, const std::vector<StageCost>& costs) {
  if (!e.offload.on && !e.offload.gradients) return 0;
  const bool late = job_.optimizer.kind != OptimizerKind::Muon;
  const Stages& all = stages(e.layout);
  double most = 0, before_forward = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const RegionBytes& host = state(e.layout, e.offload, all.contents[i], static_cast<int>(i)).host;
    const double copies = host_copy_s(at(host, Region::Optimizer) + at(host, Region::Gradients));
    const double hidden =
        late ? before_forward + software_.overlaps_gather * costs[i].forward.total_s : 0;
    most = std::max(most, copies - hidden);
    before_forward += costs[i].forward.total_s;
  }
  return most;
}

Evaluation Planner::evaluate(const Layout& l, const StateOffload& offload) {
  return with_memory(timing(l, offload));
}

Evaluation Planner::estimate(const Layout& l, const StateOffload& offload) {
  return with_memory(timing(l, offload, PipelineAs::EqualChunks));
}

Evaluation Planner::with_memory(Evaluation e) {
  const Layout& l = e.layout;
  const StateOffload& offload = e.offload;
  const std::vector<RegionBytes> bytes = memory(l, offload);
  for (std::size_t stage = 0; stage < bytes.size(); ++stage)
    if (const double all = static_cast<double>(total(bytes[stage])); all > e.memory_bytes) {
      e.memory_bytes = all;
      e.fullest_stage = static_cast<int>(stage);
    }
  e.memory_bytes += machine_.gpu.own_gb * 1e9;
  e.fits = e.memory_bytes <= machine_.gpu.usable_bytes();
  if (!offload.on && !offload.gradients) return e;
  const Stages& all = stages(l);
  for (std::size_t stage = 0; stage < all.contents.size(); ++stage)
    e.host_bytes = std::max(
        e.host_bytes, static_cast<double>(total(
                          state(l, offload, all.contents[stage], static_cast<int>(stage)).host)));
  const double ranks = static_cast<double>(std::min<std::int64_t>(l.ranks(), machine_.node.gpus));
  if (machine_.node.host_memory_gb > 0)
    e.fits = e.fits && ranks * e.host_bytes <= kOffloadable * machine_.node.host_memory_gb * 1e9;
  return e;
}

double Planner::message_s(const Layout& l, const MicroBatchCost& p) const {
  if (l.pp == 1) return 0;
  const bool split = software_.scattered_pipeline && !l.sequence_parallel && l.tp > 1;
  const double more_s = l.ranks() > machine_.node.gpus ? 1e-3 * software_.message_ms : 0;
  return more_s + software_.communication *
                      collective_s(links(l, GroupKind::Pp), Collective::Send,
                                   static_cast<double>(p.trace.boundary) / (split ? l.tp : 1));
}

StageTimes Planner::stage_times(const Layout& l, const std::vector<StageCost>& costs,
                                double message) const {
  StageTimes times{.message = message};
  if (l.pp > 1 && l.ranks() > machine_.node.gpus)
    times.first_message = 1e-3 * software_.first_message_ms;
  for (const StageCost& c : costs) {
    times.forward.push_back(c.forward.total_s);
    times.backward.push_back(c.backward.total_s);
    const bool end = &c == &costs.front() || &c == &costs.back();
    const int stops = end ? std::min(1, software_.pipeline_stops) : software_.pipeline_stops;
    times.stops.push_back(l.pp > 1 ? 2.0 * l.chunks * stops * message : 0);
  }
  return times;
}

// What a stage waits for is spread over its chunks by what they compute.
std::vector<ChunkTimes> Planner::chunk_times(const Layout& l, const MicroBatchCost& p, int stage,
                                             const StageCost& of_stage) {
  std::vector<ChunkTimes> times;
  ChunkTimes all;
  for (const StageLayers& chunk : stages(l).chunks[static_cast<std::size_t>(stage)]) {
    const StageCost cost = chunk_cost(l, p, chunk);
    times.push_back({cost.forward.total_s, cost.backward.total_s});
    all.forward += cost.forward.total_s;
    all.backward += cost.backward.total_s;
  }
  const auto scale = [](double& time, double to, double from) { time *= from > 0 ? to / from : 0; };
  for (ChunkTimes& chunk : times) {
    scale(chunk.forward, of_stage.forward.total_s, all.forward);
    scale(chunk.backward, of_stage.backward.total_s, all.backward);
  }
  return times;
}

Evaluation Planner::timing(const Layout& l, const StateOffload& offload) {
  return timing(l, offload, PipelineAs::Executed);
}

Evaluation Planner::timing(const Layout& l, const StateOffload& offload, PipelineAs as) {
  Evaluation e{.layout = l, .offload = offload};
  const MicroBatchCost& p = micro_batch_cost(l);
  const double m = static_cast<double>(micro_batches_per_step(l, job_.batch));
  std::vector<StageCost> costs;
  for (int stage = 0; stage < l.pp; ++stage) costs.push_back(stage_cost(l, offload, p, stage));
  const double message = message_s(l, p);
  const PipelineShape shape{l.schedule, l.pp, static_cast<int>(m), l.chunks};
  StageTimes times = stage_times(l, costs, message);
  times.weight_share = p.weight_share;
  const bool executed = as == PipelineAs::Executed && l.pp > 1;
  for (int stage = 0; executed && stage < l.pp; ++stage)
    times.chunks.push_back(chunk_times(l, p, stage, costs[static_cast<std::size_t>(stage)]));
  const double pipeline_time =
      executed ? executed_pipeline_s(shape, times) : pipeline_s(shape, times);
  const std::size_t at = slowest_stage(times);
  const double slowest = times.forward[at] + times.backward[at] + times.stops[at];
  const StageCost& c = costs[at];
  e.matmul_s = m * (c.forward.matmul_s + c.backward.matmul_s);
  e.attention_s = m * (c.forward.attention_s + c.backward.attention_s);
  e.memory_s = m * (c.forward.memory_s + c.backward.memory_s);
  e.tensor_s = m * (c.forward.exposed_s + c.backward.exposed_s);
  e.data_s = m * c.shard_s;
  e.message_s = m * times.stops[at];
  e.offload_s = m * c.host_s;
  e.ideal_s = m * slowest - e.tensor_s - e.data_s - e.message_s - e.offload_s;
  add_data(l, costs, e);
  e.other_s = software_.step_ms * 1e-3;
  const double late_update = offload_wait_s(e, costs);
  e.offload_s += late_update;
  e.step_s = pipeline_time + (e.data_s - m * c.shard_s) + late_update + e.optimizer_s + e.other_s;
  const double late = std::max(0.0, loading_s(job_, l, machine_) - e.step_s);
  e.other_s += late;
  e.step_s += late;
  e.bubble = (pipeline_time - m * slowest) / e.step_s;
  // Stages with less work than the slowest wait for it.
  double busy_s = 0;
  for (const StageCost& stage : costs)
    busy_s += m * (stage.forward.total_s - stage.forward.exposed_s + stage.backward.total_s -
                   stage.backward.exposed_s - stage.shard_s - stage.host_s);
  finish(e, busy_s / l.pp);
  return e;
}

void Planner::finish(Evaluation& e, double busy_s) const {
  const double gpus = e.layout.ranks(), peak = machine_.gpu.tflops(job_.precision) * 1e12;
  const double per_gpu = job_.tokens() / gpus;
  e.tokens_per_s_per_gpu = per_gpu / e.step_s;
  e.mfu_causal = flops_.causal() * per_gpu / (e.step_s * peak);
  e.mfu_full = flops_.full() * per_gpu / (e.step_s * peak);
  // Computing, waiting for other GPUs (communication, bubbles), and waiting for the host.
  const GpuSpec& gpu = machine_.gpu;
  const double idle_s = std::min(e.other_s, e.step_s);
  const double computing_s = std::min(busy_s + e.optimizer_s, e.step_s - idle_s);
  const double waiting_s = e.step_s - idle_s - computing_s;
  e.gpu_joule =
      gpus * (computing_s * gpu.busy_w() + waiting_s * gpu.waiting_w() + idle_s * gpu.idle_w);
  // A job has whole nodes; GPUs that it does not use are idle.
  const double node_gpus = static_cast<double>(machine_.node.gpus);
  const double nodes = std::ceil(gpus / node_gpus), unused = nodes * node_gpus - gpus;
  e.node_joule =
      e.gpu_joule + e.step_s * (nodes * std::max(machine_.node.host_w, 0.0) + unused * gpu.idle_w);
}

}  // namespace kintsugi
