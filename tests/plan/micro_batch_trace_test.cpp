// The engine's operations on the sim backend against closed forms of the literature.
#include "plan/costs/micro_batch_trace.h"

#include <gtest/gtest.h>

#include "model/metrics.h"
#include "plan/costs/state_trace.h"

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;

double flops_of(const OperationTrace& trace, Kind kind) {
  double sum = 0;
  for (const TracedOperation& operation : trace.operations)
    sum += operation.kind == kind ? operation.flops : 0;
  return sum;
}

struct Calls {
  int calls = 0;
  double bytes = 0;
};
Calls calls_of(const OperationTrace& trace, const std::string& group, Collective collective) {
  Calls calls;
  for (const TracedOperation& operation : trace.operations)
    if (operation.kind == Kind::Collective && operation.group == group &&
        operation.collective == collective) {
      ++calls.calls;
      calls.bytes += operation.bytes;
    }
  return calls;
}

PlanJob job_of(const char* preset, std::int64_t length) {
  return {.model = load_preset(preset), .length = length, .batch = 64};
}

// The FLOPs of a step equal the formula used for MFU.
TEST(MicroBatchTrace, FlopsAreTheFormulas) {
  for (const char* preset : {"gpt-175b", "llama-8b", "qwen3-8b", "bloom-560m"}) {
    const PlanJob job = job_of(preset, 2048);
    const MicroBatchTrace pass = trace_micro_batch(job, job.model, {.micro_batch = 2});
    const double tokens = 2 * 2048, layers = static_cast<double>(job.model.layers);
    const TrainingFlops wanted = training_flops_per_token(job.model, job.length);
    const double linear = layers * (flops_of(pass.layers[0].plain.forward, Kind::Matmul) +
                                    flops_of(pass.layers[0].plain.backward, Kind::Matmul)) +
                          flops_of(pass.head, Kind::Matmul);
    EXPECT_NEAR(linear / tokens / wanted.linear, 1, 1e-9) << preset;
    // The full diagonal is counted: s + 1 instead of s.
    const double attention =
        layers * flops_of(pass.layers[0].plain.forward, Kind::AttentionForward);
    EXPECT_NEAR(attention / tokens / (wanted.attention_causal / 3), 2049.0 / 2048, 1e-9) << preset;
    EXPECT_NEAR(flops_of(pass.layers[0].plain.backward, Kind::AttentionBackward),
                2.5 * attention / layers, 1e-3 * attention / layers);
  }
}

// The head processes a long micro-batch in chunks; the trace does not grow with their number.
TEST(MicroBatchTrace, LongMicroBatchesHaveShortTraces) {
  for (const std::int64_t length : {std::int64_t{1} << 18, std::int64_t{1} << 26}) {
    const PlanJob job = job_of("llama-8b", length);
    for (const int tp : {1, 8}) {
      const MicroBatchTrace pass =
          trace_micro_batch(job, job.model, {.tp = tp, .sequence_parallel = tp > 1});
      EXPECT_LT(pass.head.operations.size(), 1000u);
      const double whole = flops_of(pass.head, Kind::Matmul);
      const double all = whole + pass.head_extra * (whole - flops_of(pass.head_half, Kind::Matmul));
      const double vocabulary = static_cast<double>(job.model.vocab_size) / tp;
      EXPECT_NEAR(all / (6.0 * static_cast<double>(length * job.model.hidden_size) * vocabulary), 1,
                  1e-9)
          << length << " tokens, tp " << tp;
    }
  }
}

// planning.md §1: 8N instead of 6N, except for the last matmul, whose output is not recomputed.
TEST(MicroBatchTrace, FullRecomputeRepeatsTheForward) {
  const PlanJob job = job_of("gpt-175b", 2048);
  const MicroBatchTrace pass = trace_micro_batch(job, job.model, {.recompute = Recompute::Full});
  const double forward = flops_of(pass.layers[0].plain.forward, Kind::Matmul);
  const double again = flops_of(pass.layers[0].recomputed.backward, Kind::Matmul) -
                       flops_of(pass.layers[0].plain.backward, Kind::Matmul);
  EXPECT_NEAR(again / forward, 16.0 / 24, 1e-9);  // 8 h² + 8 h² of 24 h²
  // arXiv 2205.05198: a layer keeps only its input, 2 s b h.
  EXPECT_EQ(pass.boundary, 2 * 2048 * 12288);
  EXPECT_EQ(total(pass.layers[0].recomputed.stash), 0);
}

// arXiv 1909.08053: two all-reduces of 2 s b h bytes forward, two backward, and each rank computes
// 1/tp of the matmuls.
TEST(MicroBatchTrace, TensorParallelism) {
  const PlanJob job = job_of("gpt-175b", 2048);
  const MicroBatchTrace one = trace_micro_batch(job, job.model, {}),
                        eight = trace_micro_batch(job, job.model, {.tp = 8});
  EXPECT_NEAR(one.layers[0].plain.forward.flops() / eight.layers[0].plain.forward.flops(), 8, 1e-9);
  EXPECT_NEAR(one.layers[0].plain.backward.flops() / eight.layers[0].plain.backward.flops(), 8,
              1e-9);
  const double stream = 2.0 * 2048 * 12288;
  const Calls forward = calls_of(eight.layers[0].plain.forward, "tp", Collective::AllReduce),
              backward = calls_of(eight.layers[0].plain.backward, "tp", Collective::AllReduce);
  EXPECT_EQ(forward.calls, 2);
  EXPECT_EQ(forward.bytes, 2 * stream);
  EXPECT_EQ(backward.calls, 2);
  EXPECT_EQ(backward.bytes, 2 * stream);
  EXPECT_EQ(calls_of(one.layers[0].plain.forward, "tp", Collective::AllReduce).calls, 0);

  // Sequence parallelism: reduce-scatters instead of all-reduces, and all-gathers of the inputs.
  const MicroBatchTrace rows =
      trace_micro_batch(job, job.model, {.tp = 8, .sequence_parallel = true});
  EXPECT_EQ(calls_of(rows.layers[0].plain.forward, "tp", Collective::AllReduce).calls, 0);
  EXPECT_EQ(calls_of(rows.layers[0].plain.forward, "tp", Collective::ReduceScatter).bytes,
            2 * stream);
  EXPECT_EQ(calls_of(rows.layers[0].plain.forward, "tp", Collective::AllGather).bytes, 2 * stream);
  EXPECT_EQ(rows.boundary, stream / 8);
}

// A rank receives (c - 1) / c of the sequence's keys and values, planning.md §4.
TEST(MicroBatchTrace, ContextParallelism) {
  const PlanJob job = job_of("llama-8b", 8192);
  const MicroBatchTrace pass = trace_micro_batch(job, job.model, {.cp = 4});
  const double kv = 2.0 * 2 * 8192 * 8 * 128;  // bytes of a whole sequence's keys and values
  EXPECT_EQ(calls_of(pass.layers[0].plain.forward, "cp", Collective::Receive).bytes, kv * 3 / 4);
  const MicroBatchTrace whole = trace_micro_batch(job, job.model, {});
  EXPECT_NEAR(whole.layers[0].plain.forward.flops() / pass.layers[0].plain.forward.flops(), 4,
              0.01);
}

// A rank sends and receives its part of queries, results and the keys and values of a head.
TEST(MicroBatchTrace, Ulysses) {
  const PlanJob job = job_of("llama-8b", 8192);
  const MicroBatchTrace pass =
      trace_micro_batch(job, job.model, {.cp = 4, .context = ContextMethod::Ulysses});
  const Calls forward = calls_of(pass.layers[0].plain.forward, "cp", Collective::AllToAll);
  EXPECT_EQ(forward.calls, 4);
  EXPECT_EQ(forward.bytes, 2.0 * 2048 * (2 * 32 + 2 * 8) * 128);
  const MicroBatchTrace whole = trace_micro_batch(job, job.model, {});
  EXPECT_NEAR(whole.layers[0].plain.forward.flops() / pass.layers[0].plain.forward.flops(), 4,
              1e-3);
}

// planning.md §3: bf16 weights 2, fp32 gradients 4, master and two moments 12 bytes per parameter.
TEST(StateTrace, BytesPerParameter) {
  const PlanJob job = job_of("llama-8b", 8192);
  const ModelLayers model(job.model);
  const auto bytes = [&](int zero, int dp) {
    const StateTrace state = trace_state(job, model, {.dp = dp, .zero = zero}, {.layers = {32}});
    // Buffers for temporarily gathered layers are extra.
    const auto of = [&](Region region) {
      return static_cast<double>(state.memory[static_cast<std::size_t>(region)]);
    };
    return (of(Region::Weights) + of(Region::Gradients) + of(Region::Optimizer)) / state.parameters;
  };
  EXPECT_NEAR(bytes(0, 8), 18, 1e-3);
  EXPECT_NEAR(bytes(1, 8), 6 + 12.0 / 8, 1e-3);
  EXPECT_NEAR(bytes(2, 8), 2 + 16.0 / 8, 1e-3);
  EXPECT_NEAR(bytes(3, 8), 18.0 / 8, 1e-3);
}

// fp32 gradients are reduced once, bf16 weights are gathered once.
TEST(StateTrace, TrafficOfAStep) {
  const PlanJob job = job_of("llama-8b", 8192);
  const StateTrace state = trace_state(job, job.model, {.dp = 8, .zero = 1}, {.layers = {32}});
  const auto bytes = [&](Collective collective) {
    return state.traffic.at({"shard", collective}).bytes;
  };
  EXPECT_NEAR(bytes(Collective::ReduceScatter) / state.parameters, 4, 1e-3);
  EXPECT_NEAR(bytes(Collective::AllGather) / state.parameters, 2, 1e-3);
  // Gradient 4 for the norm, 4 for the update; master and moments read and written 24; weight 2.
  double moved = 0;
  for (const auto& [operation, moves] : state.step_bytes) moved += moves;
  EXPECT_NEAR(moved / (state.parameters / 8), 4 + 4 + 24 + 2, 0.1);
}

}  // namespace
}  // namespace kintsugi
