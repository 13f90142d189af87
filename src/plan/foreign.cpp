#include "plan/foreign.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel/layer_split.h"

namespace kintsugi {

// Megatron with sequence parallelism: of a layer's ten exchanges the backward's two gatherings of
// inputs and two scatterings of gradients run beside products.
constexpr double kHiddenExchanges = 0.4;

Software software_of(System system) {
  switch (system) {
    case System::Megatron2021:
      return {.name = "Megatron-LM 2021",
              .fused_attention = false,
              .host_us = 8,
              .elementwise = 1.3,
              .overlaps_tensor = false,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .pipeline_stops = 1,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 30};
    case System::Megatron2022:  // selective recomputation, sequence parallelism
      return {.name = "Megatron-LM 2022",
              .fused_attention = false,
              .host_us = 8,
              .elementwise = 1.2,
              .overlaps_tensor = true,
              .hides_tensor = kHiddenExchanges,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 30};
    case System::MegatronDeepSpeed:
    case System::MegatronDeepSpeed2021:
      return {.name = "Megatron-DeepSpeed",
              .fused_attention = false,
              .host_us = 10,
              .elementwise = 1.3,
              .overlaps_tensor = false,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .pipeline_stops = 1,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 50};
    case System::DeepSpeedZero3:  // matrix by matrix, nothing ahead
      return {.name = "DeepSpeed ZeRO-3 2021",
              .fused_attention = false,
              .host_us = 10,
              .elementwise = 1.3,
              .overlaps_data = 0,
              .overlaps_gather = 0,
              .layer_calls = 4,
              .gradient_wire = 2,
              .communication = 3,
              .step_ms = 50};
    case System::MegatronCore:
      return {.name = "Megatron Core",
              .host_us = 8,
              .elementwise = 1.2,
              .hides_tensor = kHiddenExchanges,
              .overlaps_data = 0.8,
              .overlaps_gather = 0.8,
              .communication = 1.2,
              .step_ms = 100};
    case System::Nanotron:
      // Every collective waits for the slowest host of its group, which takes longer where the
      // hosts also serve a pipeline's messages; sends and receives go one after the other.
      return {.name = "nanotron",
              .host_us = 14,
              .collective_host_us = 350,
              .pipeline_host_us = 240,
              .elementwise = 5,
              .gradient_passes = 10,
              .overlaps_tensor = false,
              .hides_tensor = 0.5,
              .overlaps_data = 1,
              .overlaps_sharded = 0.3,
              .overlaps_gather = 0,
              .pipeline_stops = 2,
              .communication = 1.3,
              .step_ms = 45};
    case System::Fsdp:
      return {.name = "FSDP",
              .attention = 0.85,
              .host_us = 12,
              .elementwise = 1.9,
              .overlaps_data = 0.9,
              .overlaps_gather = 0.9,
              .gradient_wire = 2,
              .communication = 1.2,
              .step_ms = 20};
    case System::Torchtitan:
      return {.name = "torchtitan",
              .host_us = 10,
              .elementwise = 3,
              .overlaps_data = 0.9,
              .overlaps_gather = 0.9,
              .communication = 1.2,
              .step_ms = 15};
  }
  return {};
}

namespace {

// Least squares over half of the Ultra-Scale rows.
constexpr double kNanotronStates = 1.17, kNanotronActivations = 4.65;
constexpr double kLogitBytes = 6.5;  // logits, a copy in fp32, and what is left of one more

struct Sizes {
  double layer = 0;  // parameters of one layer
  double table = 0;  // of embedding or head
};
Sizes sizes_of(const ModelConfig& c) {
  const double h = static_cast<double>(c.hidden_size), f = static_cast<double>(c.ffn_size);
  const double out = static_cast<double>(c.heads * c.head_dim);
  const bool gated = c.traits().activation == ActivationKind::Swiglu;
  return {h * (static_cast<double>(c.qkv_rows()) + out) + (gated ? 3 : 2) * h * f,
          h * static_cast<double>(c.vocab_size)};
}

// Bytes that one token leaves behind in one layer for the backward, on one tensor rank.
double token_bytes(System system, const PlanJob& job, const PlanLayout& l, Recompute recompute) {
  const ModelConfig& c = job.model;
  const double h = static_cast<double>(c.hidden_size), t = l.tp,
               f = static_cast<double>(c.ffn_size);
  const double rows = l.sequence_parallel ? t : 1;
  if (recompute == Recompute::Full) return 2 * h / rows;
  const bool gated = c.traits().activation == ActivationKind::Swiglu;
  if (!gated) {
    const bool scores = !software_of(system).fused_attention && recompute == Recompute::None;
    const double square = scores ? 5.0 * static_cast<double>(c.heads * job.length) / t : 0;
    // MPT trains without dropout and its masks.
    const double between = system == System::Fsdp ? 6 : 10;
    return h * (between / rows + 24 / t) + square;
  }
  const double qkv = static_cast<double>(c.qkv_rows()),
               out = static_cast<double>(c.heads * c.head_dim);
  // nanotron keeps copies of most of it; in multiples of what its products make.
  if (system == System::Nanotron) return kNanotronActivations * (qkv + out + 3 * f) / t;
  // Block input, residual and norm outputs; then what the tensor ranks share.
  const double inside = 2 * qkv + 2 * out + 6 * f + 4.0 * static_cast<double>(c.heads);
  return 8 * h / rows + inside / t;
}

struct StateBytes {
  double whole = 18;  // per parameter
  double cut = 0;     // per parameter, shared by the data ranks
};
StateBytes state_bytes(System system, const PlanLayout& l, double gradient_bytes) {
  const double weights = 2, gradients = gradient_bytes > 0 ? gradient_bytes : 4;
  const double optimizer = 12;
  switch (l.zero) {
    case 0:
      return {weights + gradients + optimizer, 0};
    case 1:
      return system == System::MegatronDeepSpeed && gradients == 2
                 ? StateBytes{weights, gradients + optimizer}
                 : StateBytes{weights + gradients, optimizer};
    case 2:
      return {weights, gradients + optimizer};
    default:
      return {0, weights + gradients + optimizer};
  }
}

}  // namespace

std::vector<ForeignMemory> foreign_memory(System system, const PlanJob& job, const PlanLayout& l,
                                          double gradient_bytes) {
  const ModelConfig& c = job.model;
  const Sizes sizes = sizes_of(c);
  const std::vector<int> split = balanced_split(c, l.pp * l.chunks);
  const double tokens = static_cast<double>(l.micro * job.length) / l.cp, t = l.tp;
  const double m = static_cast<double>(std::max<std::int64_t>(1, micro_batches_of(job, l)));
  const StateBytes per = state_bytes(system, l, gradient_bytes);
  const double plain = token_bytes(system, job, l, Recompute::None);
  const double kept = token_bytes(system, job, l, l.recompute);
  std::vector<ForeignMemory> stages;
  for (int stage = 0; stage < l.pp; ++stage) {
    double layers = 0, recomputed = 0;
    for (const StagePart& part : stage_parts(split, l.pp, stage))
      for (int layer = part.first_layer; layer < part.last_layer; ++layer) {
        layers += 1;
        recomputed += layer % l.recompute_every == 0 ? 1 : 0;
      }
    const bool first = stage == 0, last = stage == l.pp - 1;
    double parameters = layers * sizes.layer / t;
    if (first) parameters += sizes.table / t;
    if (last && !(c.tied && l.pp == 1)) parameters += sizes.table / t;
    double flight = std::min<double>(l.pp - stage, m);
    if (l.chunks > 1) flight = std::min(m, flight * (1 + (l.pp - 1.0) / (l.pp * l.chunks)));
    ForeignMemory here;
    here.states = parameters * (per.whole + per.cut / (l.dp * l.cp));
    if (system == System::Nanotron) here.states *= kNanotronStates;
    // FSDP: two layers whole at a time, in the precision of the products.
    if (l.zero == 3) here.states += 2 * 2 * sizes.layer / t + 2 * sizes.table / t;
    here.activations = flight * tokens * (recomputed * kept + (layers - recomputed) * plain);
    // What was received, cut among the tensor ranks.
    if (l.pp > 1) here.activations += flight * tokens * 2 * static_cast<double>(c.hidden_size) / t;
    if (l.recompute == Recompute::Full) here.work += tokens * plain;
    if (last) here.work += tokens * static_cast<double>(c.vocab_size) / t * kLogitBytes;
    // DeepSpeed's two buckets of 5e8 gradients, and those of the layer at work.
    if (system == System::MegatronDeepSpeed || system == System::MegatronDeepSpeed2021)
      here.work += 2e9 + 2 * sizes.layer / t;
    stages.push_back(here);
  }
  return stages;
}

}  // namespace kintsugi
