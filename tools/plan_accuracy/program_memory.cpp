#include "plan_accuracy/program_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "parallel/layout.h"
#include "plan_accuracy/block_bytes.h"

namespace kintsugi {
namespace {

struct Sizes {
  double layer = 0;    // parameters of one layer
  double largest = 0;  // of its largest matrix
  double table = 0;    // of embedding or head
};
Sizes sizes_of(const BlockShape& b, double vocabulary) {
  const double gate = b.gated ? 2 : 1;  // gate and up are one matrix in most programs
  return {b.hidden * (b.qkv + b.query) + (1 + gate) * b.hidden * b.ffn,
          b.hidden * std::max(b.qkv, gate * b.ffn), b.hidden * vocabulary};
}

bool deep_speed(MemoryForms s) {
  return s == MemoryForms::MegatronDeepSpeed || s == MemoryForms::MegatronDeepSpeed2021;
}

// Bytes per parameter.
struct StateBytes {
  double whole = 18;   // replicated on every data rank
  double sharded = 0;  // sharded over the data ranks
  double step = 0;     // temporary, during the optimizer step
  bool step_sharded = false;
};
StateBytes state_bytes(MemoryForms forms, const Layout& l, DType precision, double gradients) {
  // In torchtitan the fp32 weights are also the master copy.
  const double weights = 2, optimizer = forms == MemoryForms::Torchtitan ? 10 : 12;
  const bool wide = gradients == 4;
  // nanotron, and DeepSpeed with fp32 accumulation, also keep the bf16 gradients of the matmuls.
  const bool beside =
      wide && (forms == MemoryForms::Nanotron || (deep_speed(forms) && precision == DType::BF16));
  const double all = gradients + (beside ? 2 : 0);
  // 16-bit gradients are converted to fp32 for the step; DeepSpeed first flattens them.
  const double widened = wide ? 0 : (deep_speed(forms) ? 6 : 4);
  switch (l.zero) {
    case 0:
      return {weights + all + optimizer, 0, widened, false};
    case 1:
      return forms == MemoryForms::MegatronDeepSpeed && !wide
                 ? StateBytes{weights, all + optimizer, widened, true}
                 : StateBytes{weights + all, optimizer, widened, true};
    case 2:
      return {weights, all + optimizer, widened, true};
    default:
      return {0, weights + all + optimizer, 0, true};
  }
}

bool by_operation(MemoryForms forms, const MemoryRun& run) {
  return forms == MemoryForms::Torchtitan && run.by_operation;
}

// Activation bytes that one token keeps for the backward in one layer on one tensor rank.
double token_bytes(MemoryForms forms, const PlanJob& job, const Layout& l, Recompute recompute,
                   const MemoryRun& options) {
  const BlockShape b = block_shape(job.model);
  const double t = l.tp, rows = l.sequence_parallel ? t : 1;
  if (recompute == Recompute::Full && by_operation(forms, options)) {
    // The outputs of attention and of every second matmul of wq, wk, wv, wo, w1, w3, w2 are kept.
    const double kv = (b.qkv - b.query) / 2;
    return 4 * b.hidden / rows + (2 * (2 * b.query + kv + b.ffn) + 4 * b.heads) / t;
  }
  if (recompute == Recompute::Full) return 2 * b.hidden / rows;
  if (forms == MemoryForms::Nanotron) {
    // Rotated queries and keys and the activated gate are separate tensors.
    const double rotated = (b.qkv + b.query) / 2;
    const double inside = 2 * (b.qkv + rotated + b.query) + (b.gated ? 8 : 4) * b.ffn + 4 * b.heads;
    return 8 * b.hidden / rows + inside / t +
           (options.gathers_again || l.tp == 1 ? 0 : 4 * b.hidden);
  }
  const bool fused = options.fused_attention || recompute == Recompute::Selective;
  BlockOptions block{.tp = t, .rows = rows, .length = static_cast<double>(job.length)};
  // Llama and MPT train without dropout.
  block.dropout = !b.gated && forms != MemoryForms::Fsdp;
  block.fused_attention = fused;
  const double lse = fused && !b.gated ? 4 * b.heads / t : 0;  // not in the formulas for GPT
  return block_bytes(b, block) - lse;
}

// Bytes per logit of all copies of the logits during the loss.
double logit_bytes(MemoryForms forms, const MemoryRun& run) {
  if (forms == MemoryForms::Nanotron) return 10;  // bf16, fp32, and fp32 minus the maximum
  // With torch's cross entropy: bf16, fp32, log-softmax and its gradient.
  if (forms == MemoryForms::Torchtitan) return run.compiled_loss ? 4 : 14;
  return 6;  // 16 bit, and fp32 that becomes the gradient in place
}

// Gathered weights of FSDP or ZeRO-3, with the gradients that are being reduced.
double gathered_bytes(MemoryForms forms, const Sizes& s, double t) {
  constexpr double kBucket = 5e8;  // DeepSpeed's prefetch, and its bucket of gradients
  switch (forms) {
    case MemoryForms::DeepSpeedZero3:  // one module at a time
      return 2 * (s.largest / t + kBucket) + 2 * kBucket;
    case MemoryForms::Torchtitan:  // two layers; the head with its gradient, which is reduced in
                                   // fp32
      return 2 * 2 * s.layer / t + (2 + 4) * s.table / t;
    default:  // two layers and the head
      return 2 * 2 * s.layer / t + 2 * s.table / t;
  }
}

struct StageSizes {
  double layers = 0, recomputed = 0;
  bool head = false;
};
std::vector<StageSizes> stages_of(MemoryForms forms, const PlanJob& job, const Layout& l,
                                  const MemoryRun& run) {
  std::vector<StageSizes> stages;
  if (forms == MemoryForms::Nanotron) {
    const NanotronSplit split = nanotron_split(job.model, l.pp);
    for (const int layers : split.layers) stages.push_back({.layers = std::max<double>(0, layers)});
    stages[static_cast<std::size_t>(split.head)].head = true;
    return stages;
  }
  const int every = by_operation(forms, run) ? 1 : l.recompute_every;
  const std::vector<int> split = balanced_split(job.model, l.pp * l.chunks);
  for (int stage = 0; stage < l.pp; ++stage) {
    StageSizes sizes{.head = stage == l.pp - 1};
    for (const StageLayers& chunk : stage_layers(split, l.pp, stage))
      for (int layer = chunk.first_layer; layer < chunk.last_layer; ++layer) {
        sizes.layers += 1;
        sizes.recomputed += layer % every == 0 ? 1 : 0;
      }
    stages.push_back(sizes);
  }
  return stages;
}

// Temporary memory of forward and backward (ProgramMemory::work).
double work_bytes(MemoryForms forms, const PlanJob& job, const Layout& l, const MemoryRun& run,
                  bool head, double plain) {
  const BlockShape b = block_shape(job.model);
  const double vocabulary = static_cast<double>(job.model.vocab_size), t = l.tp;
  const Sizes sizes = sizes_of(b, vocabulary);
  const double tokens = static_cast<double>(l.micro_batch * job.length) / l.cp;
  // Logits are freed before the first layer is recomputed.
  const double recomputed = l.recompute == Recompute::Full ? tokens * plain : 0;
  const double logits = head ? tokens * vocabulary / t * logit_bytes(forms, run) : 0;
  double work = std::max(recomputed, logits);
  if (l.zero == 3) work += gathered_bytes(forms, sizes, t);
  // DeepSpeed's two buckets of 5e8 gradients, and the gradients of the current layer.
  if (deep_speed(forms)) work += 2e9 + 2 * sizes.layer / t;
  if (forms == MemoryForms::Nanotron) {
    // Gradients of the widest activations of a block in the backward.
    work = std::max(work, tokens * 6 * b.ffn / t);
    // Full rows: gathered for a matmul, before the reduce-scatter, and their gradient.
    if (l.tp > 1) work += 3 * tokens * 2 * b.hidden;
    work += 0.2e9;  // from its smallest runs: workspaces, ids, rotary tables
  }
  return work;
}

}  // namespace

NanotronSplit nanotron_split(const ModelConfig& config, int stages) {
  // Embedding, layers, norm, head, cast and loss are assigned in order; a stage is full when the
  // sum of weights exceeds its fraction. Keys and values count as many heads as queries.
  const BlockShape b = block_shape(config);
  const double layer = 4 * b.query * b.hidden + 3 * b.ffn * b.hidden;
  const double head = static_cast<double>(config.vocab_size) * b.hidden;
  std::vector<double> costs(static_cast<std::size_t>(config.layers) + 5, 0);
  std::fill(costs.begin() + 1, costs.begin() + 1 + config.layers, layer);
  costs[static_cast<std::size_t>(config.layers) + 2] = head;
  const double all = layer * static_cast<double>(config.layers) + head;
  NanotronSplit split{.layers = std::vector<int>(static_cast<std::size_t>(stages), -1)};
  std::vector<int>& layers = split.layers;
  double sum = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    sum += costs[i];
    layers[at] = std::max(layers[at], 0);
    if (i >= 1 && i <= static_cast<std::size_t>(config.layers)) layers[at] += 1;
    if (i == static_cast<std::size_t>(config.layers) + 2) split.head = static_cast<int>(at);
    const double limit = all * (static_cast<double>(at + 1) / stages);
    if (sum > limit && at + 1 < layers.size()) ++at;
  }
  return split;
}

std::string refusal(MemoryForms forms, const PlanJob& job, const Layout& l, double m) {
  if (forms != MemoryForms::Nanotron || l.pp == 1) return "";
  if (m < l.pp - 1)
    return fmt::format("nanotron's 1F1B needs at least {} micro-batches for {} stages", l.pp - 1,
                       l.pp);
  const std::vector<int> split = nanotron_split(job.model, l.pp).layers;
  const auto empty = std::find(split.begin(), split.end(), -1);
  return empty == split.end() ? ""
                              : fmt::format("nanotron's split leaves nothing for stage {} of {}",
                                            empty - split.begin(), l.pp);
}

std::vector<ProgramMemory> program_memory(MemoryForms forms, const PlanJob& job, const Layout& l,
                                          const MemoryRun& run) {
  const ModelConfig& c = job.model;
  const BlockShape block = block_shape(c);
  const Sizes sizes = sizes_of(block, static_cast<double>(c.vocab_size));
  const double tokens = static_cast<double>(l.micro_batch * job.length) / l.cp, t = l.tp;
  const double m =
      static_cast<double>(std::max<std::int64_t>(1, micro_batches_per_step(l, job.batch)));
  const StateBytes per =
      state_bytes(forms, l, job.precision, run.gradient_bytes > 0 ? run.gradient_bytes : 4);
  const double shards = l.dp * l.cp;
  const double plain = token_bytes(forms, job, l, Recompute::None, run);
  const double kept = token_bytes(forms, job, l, l.recompute, run);
  std::vector<ProgramMemory> result;
  for (const StageSizes& stage : stages_of(forms, job, l, run)) {
    const int i = static_cast<int>(result.size());
    double parameters = stage.layers * sizes.layer / t;
    if (i == 0) parameters += sizes.table / t;
    if (stage.head && !(c.tied && l.pp == 1)) parameters += sizes.table / t;
    const double flight = chunks_in_flight({l.pp, i, l.chunks, m}) / l.chunks;
    ProgramMemory memory;
    memory.states = parameters * (per.whole + per.sharded / shards);
    memory.step = parameters * per.step / (per.step_sharded ? shards : 1);
    memory.activations =
        flight * tokens * (stage.recomputed * kept + (stage.layers - stage.recomputed) * plain);
    // Received messages, split among the tensor ranks.
    if (l.pp > 1) memory.activations += flight * tokens * 2 * block.hidden / t;
    memory.work = work_bytes(forms, job, l, run, stage.head, plain);
    result.push_back(memory);
  }
  return result;
}

double device_bytes(MemoryForms forms, const ProgramMemory& m, const Layout& l,
                    const Machine& machine, bool pressed) {
  // NCCL buffers: all ranks, and each kind of group; a pipeline has one per direction.
  constexpr double kGroup = 0.4e9;
  const int groups = 1 + (l.tp > 1) + 2 * (l.pp > 1) + (l.cp > 1) + (l.dp > 1 && l.dp < l.ranks());
  const double own = machine.gpu.own_gb * 1e9 + groups * kGroup;
  // Fragmentation. Micro-batches of Megatron and FSDP allocate the same sizes again and again, with
  // negligible fragmentation.
  constexpr double kFragmented = 1.25, kPressed = 1.12;
  const bool fragments = deep_speed(forms) || forms == MemoryForms::Nanotron;
  const double temporary = m.activations + m.work;
  if (pressed) return own + m.states + std::max(m.step, (fragments ? kPressed : 1.0) * temporary);
  const double shown = own + m.states + m.step + (fragments ? kFragmented : 1.0) * temporary;
  return std::min(shown, machine.gpu.memory_gb * 1e9);
}

}  // namespace kintsugi
