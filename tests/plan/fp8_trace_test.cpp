// The engine's fp8 matmuls (train.fp8) in the planner's traces and memory.
#include <gtest/gtest.h>

#include "backend/sim/sim_backend.h"
#include "comm/sim/sim_communicator.h"
#include "parallel/layout.h"
#include "plan/search/planner.h"
#include "train/engine.h"

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;

PlanJob job_in_fp8(const char* preset, Fp8Config::Layers bf16_layers = {}) {
  PlanJob job{.model = load_preset(preset), .length = 2048, .batch = 64};
  job.model.fp8 = {.recipe = Fp8Recipe::Rowwise, .bf16_layers = bf16_layers};
  return job;
}

double matmul_flops(const OperationTrace& trace, DType dtype) {
  double sum = 0;
  for (const TracedOperation& o : trace.operations)
    sum += o.kind == Kind::Matmul && o.dtype == dtype ? o.flops : 0;
  return sum;
}
double quantized(const OperationTrace& trace) {
  double bytes = 0;
  for (const TracedOperation& o : trace.operations)
    bytes += o.name == std::string_view("quantize") ? o.bytes : 0;
  return bytes;
}

TEST(Fp8Trace, AllMatmulsOfABlockAndNoneOfTheHead) {
  for (const char* preset : {"llama-8b", "qwen3-8b", "gpt2-1.5b"}) {
    const PlanJob job = job_in_fp8(preset);
    PlanJob plain = job;
    plain.model.fp8 = {};
    const MicroBatchTrace fp8 = trace_micro_batch(job, job.model, {}),
                          bf16 = trace_micro_batch(plain, plain.model, {});
    for (const auto part : {&BlockTrace::forward, &BlockTrace::backward}) {
      EXPECT_EQ(matmul_flops(fp8.layers[0].plain.*part, DType::F8),
                matmul_flops(bf16.layers[0].plain.*part, DType::BF16))
          << preset;
      EXPECT_EQ(matmul_flops(fp8.layers[0].plain.*part, DType::BF16), 0) << preset;
    }
    EXPECT_EQ(matmul_flops(fp8.head, DType::F8), 0);
    EXPECT_GT(matmul_flops(fp8.head, DType::BF16), 0);
  }
}

// Weights are quantized in the first micro-batch of a step, or at every use.
TEST(Fp8Trace, WeightsOncePerStep) {
  const PlanJob job = job_in_fp8("llama-8b");
  const MicroBatchTrace whole = trace_micro_batch(job, job.model, {}),
                        copied = trace_micro_batch(job, job.model, {.dp = 8, .zero = 1}),
                        sharded = trace_micro_batch(job, job.model, {.dp = 8, .zero = 3});
  const double later = quantized(whole.layers[0].plain.forward);
  // Each weight is read twice, in fp32 or from the copy in bf16, and written in both orientations.
  const double weights = 4096.0 * (6144 + 4096 + 3 * 14336);
  EXPECT_NEAR((quantized(whole.layers[0].plain.first_forward) - later) / weights, 2 * 4 + 2, 0.01);
  EXPECT_NEAR((quantized(copied.layers[0].plain.first_forward) - later) / weights, 2 * 2 + 2, 0.01);
  EXPECT_EQ(quantized(sharded.layers[0].plain.first_forward),
            quantized(sharded.layers[0].plain.forward));
  EXPECT_GT(quantized(sharded.layers[0].plain.forward), later);
  EXPECT_GT(quantized(sharded.layers[0].plain.backward), quantized(whole.layers[0].plain.backward));
  PlanJob often = job;
  often.model.fp8.keep_weights = false;
  EXPECT_EQ(
      quantized(
          trace_micro_batch(often, often.model, {.dp = 8, .zero = 1}).layers[0].plain.forward),
      quantized(sharded.layers[0].plain.forward));
}

TEST(Fp8Trace, ExcludedLayersAreThoseOfBf16) {
  const PlanJob job = job_in_fp8("llama-8b", {.first = 2, .last = 1});
  PlanJob plain = job;
  plain.model.fp8 = {};
  const PlanJob in_fp8 = job_in_fp8("llama-8b");
  const MicroBatchTrace mixed = trace_micro_batch(job, job.model, {}),
                        bf16 = trace_micro_batch(plain, plain.model, {}),
                        fp8 = trace_micro_batch(in_fp8, in_fp8.model, {});
  EXPECT_EQ(mixed.layers[0].plain.forward.flops(), bf16.layers[0].plain.forward.flops());
  EXPECT_EQ(matmul_flops(mixed.layers[0].plain.forward, DType::F8), 0);
  ASSERT_EQ(mixed.layers.size(), 2u) << "the first layers are not in fp8";
  EXPECT_EQ(matmul_flops(mixed.layers[1].plain.forward, DType::F8),
            matmul_flops(fp8.layers[0].plain.forward, DType::F8));
  // More excluded layers take longer.
  const auto seconds = [](Fp8Config::Layers layers) {
    return Planner(job_in_fp8("llama-8b", layers), load_machine("h200")).timing({}).step_s;
  };
  PlanJob all = plain;
  const double slowest = Planner(all, load_machine("h200")).timing({}).step_s;
  EXPECT_LT(seconds({}), seconds({.first = 2, .last = 1}));
  EXPECT_LT(seconds({.first = 2, .last = 1}), seconds({.first = 16, .last = 8}));
  EXPECT_LT(seconds({.first = 16, .last = 8}), slowest);
}

// As PlanMemory.IsTheEnginesByteForByte.
TEST(Fp8Trace, MemoryIsTheEngines) {
  for (const Fp8Config::Layers excluded :
       {Fp8Config::Layers{}, {.first = 1, .last = 0}, {.first = 2, .last = 3}})
    for (const Layout& layout :
         {Layout{.micro_batch = 2}, Layout{.dp = 2, .micro_batch = 1, .zero = 3},
          Layout{.tp = 2, .pp = 2, .micro_batch = 1, .sequence_parallel = true},
          Layout{.pp = 2,
          .dp = 2,
          .micro_batch = 1,
          .zero = 1,
          .recompute = Recompute::Selective,
          .recompute_every = 2},
          Layout{.micro_batch = 1, .recompute = Recompute::Full}}) {
      PlanJob job = job_in_fp8("llama-1b", excluded);
      job.length = 128;
      job.batch = 8;
      Planner planner(job, load_machine("dgx-h100"));
      const std::vector<RegionBytes> planned = planner.memory(layout);
      for (int stage = 0; stage < layout.pp; ++stage) {
        OperationTrace trace;
        SimBackend backend(trace, job.classifier_elements);
        PlanningAllocator memory;
        const Groups groups = planned_groups(grid_of(layout, job.model), {.pp = stage});
        const Engine engine(backend, memory,
                            {.model = job.model,
                             .precision = job.precision,
                             .layout = layout,
                             .batch = job.batch,
                             .length = job.length},
                            groups);
        EXPECT_EQ(planned[static_cast<std::size_t>(stage)], bytes_by_region(engine.arena()))
            << to_string(layout) << ", stage " << stage << ", " << excluded.first << " + "
            << excluded.last << " layers in bf16";
      }
    }
}

}  // namespace
}  // namespace kintsugi
