#include "backend/operation_cost.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/phase.h"
#include "backend/traced_backend.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

class OperationCosts : public testing::Test {
 protected:
  Tensor tensor(DType dtype, const Shape& shape) {
    return arena_.allocate(Region::Workspace, "x", dtype, shape);
  }
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(1);
  Arena arena_{*cpu_};
  CostMeter meter_;
};

TEST_F(OperationCosts, AMatmulHasTwoFlopsPerMultiplication) {
  const Tensor a = tensor(DType::BF16, {6, 5}), b = tensor(DType::BF16, {7, 5}),
               c = tensor(DType::F32, {6, 7});
  const OperationCost cost = meter_.matmul(c, a, b, {.transpose_b = true});
  EXPECT_EQ(cost.work, WorkKind::Matmul);
  EXPECT_DOUBLE_EQ(cost.flops, 2 * 6 * 7 * 5);
  EXPECT_DOUBLE_EQ(cost.bytes, 2 * 30 + 2 * 35 + 4 * 42);
  EXPECT_EQ(cost.dtype, DType::BF16);
  const OperationCost added = meter_.matmul(c, a, b, {.transpose_b = true, .accumulate = true});
  EXPECT_DOUBLE_EQ(added.bytes, cost.bytes + 4 * 42);
}

// Causal: 1 + 2 + 3 + 4 pairs for each of 2 x 3 heads; two matmuls in the forward, five in the
// backward.
TEST_F(OperationCosts, AttentionCountsThePairsThatTheMaskKeeps) {
  const Tensor q = tensor(DType::F32, {2, 4, 3, 8}), kv = tensor(DType::F32, {2, 4, 1, 8}),
               lse = tensor(DType::F32, {2, 3, 4});
  const OperationCost forward = meter_.attention_forward(q, lse, q, kv, kv, {});
  EXPECT_EQ(forward.work, WorkKind::Attention);
  EXPECT_DOUBLE_EQ(forward.flops, 2.0 * 2 * 8 * (2 * 3) * 10);
  EXPECT_DOUBLE_EQ(meter_.attention_backward(q, kv, kv, q, q, lse, q, kv, kv, {}).flops,
                   2.5 * forward.flops);
  EXPECT_EQ(operation_name("attention_forward", q, lse, q, kv, kv, AttentionOptions{}),
            "attention_forward 2x3x4x8 causal");
  const Tensor late = tensor(DType::F32, {2, 1, 3, 8});
  EXPECT_EQ(
      operation_name("attention_forward", late, lse, late, kv, kv, AttentionOptions{.window = 2}),
      "attention_forward 2x3x1x8 to 4 keys window 2");
}

TEST_F(OperationCosts, OthersAreLimitedByMemory) {
  const Tensor x = tensor(DType::BF16, {4, 6}), y = tensor(DType::BF16, {4, 3});
  const OperationCost cost = meter_.swiglu_forward(y, x);
  EXPECT_EQ(cost.work, WorkKind::Memory);
  EXPECT_EQ(cost.flops, 0);
  EXPECT_DOUBLE_EQ(cost.bytes, 2 * (24 + 12));
}

// Retention is several matmuls and memory-bound work: one operation with their sum.
TEST_F(OperationCosts, AnOperationOfSeveralPartsIsOne) {
  const Tensor qk = tensor(DType::F32, {1, 8, 2, 4}), v = tensor(DType::F32, {1, 8, 2, 6});
  const OperationCost cost = meter_.retention_forward(
      v, qk, qk, v, {}, {}, {.decays = tensor(DType::F32, {2}), .chunk = 8});
  EXPECT_EQ(cost.work, WorkKind::Matmul);
  // One chunk of 8 tokens for each of 2 heads: states, outputs from them, scores, values.
  EXPECT_DOUBLE_EQ(cost.flops, 2.0 * 2 * (4 * 6 * 8 + 8 * 6 * 4 + 8 * 8 * 4 + 8 * 6 * 8));
}

TEST_F(OperationCosts, TracedOperationsKnowTheirPhases) {
  Trace trace;
  const auto backend = make_traced_backend(make_cpu_backend(1), trace);
  const Tensor x = tensor(DType::F32, {4, 6}), y = tensor(DType::F32, {4, 3});
  backend->swiglu_forward(y, x);  // the trace is off
  trace.begin();
  {
    const Phase outer(*backend, [] { return "forward 3"; });
    backend->fill(x, 1.0);
    const Phase inner(*backend, [] { return "layer 5"; });
    backend->swiglu_forward(y, x);
  }
  backend->copy(y, y);
  trace.end();
  const auto spans = trace.take();
  ASSERT_EQ(spans.size(), 5u);
  const TraceSpan &fill = spans[0], &swiglu = spans[1], &layer = spans[2], &phase = spans[3],
                  &copy = spans[4];
  EXPECT_EQ(fill.kind, SpanKind::Memset);
  EXPECT_EQ(fill.bytes, 4 * 24);
  EXPECT_EQ(fill.operation, 0);
  EXPECT_EQ(swiglu.kind, SpanKind::Operation);
  EXPECT_EQ(swiglu.operation, 1);
  EXPECT_EQ(swiglu.phase, "forward 3");
  EXPECT_EQ(swiglu.layer, "layer 5");
  EXPECT_EQ(swiglu.dtype, "fp32");
  EXPECT_EQ(swiglu.work, WorkKind::Memory);
  EXPECT_EQ(layer.lane, "layers");
  EXPECT_EQ(layer.name, "layer 5");
  EXPECT_EQ(phase.lane, "pipeline");
  EXPECT_EQ(phase.name, "forward 3");
  EXPECT_LE(phase.begin_s, layer.begin_s);
  EXPECT_LE(layer.end_s, phase.end_s);
  EXPECT_EQ(copy.operation, 2);
  EXPECT_EQ(copy.phase + copy.layer, "");
}

TEST_F(OperationCosts, TheCpuMeasuresItsMemory) {
  EXPECT_GT(cpu_->device_facts().memory_bytes_per_s, 0);
  EXPECT_EQ(cpu_->device_facts().multiprocessors, 0);
}

TEST(OperationRepeat, NamesAnOperationAndANumber) {
  const OperationRepeat repeat = parse_operation_repeat("swiglu_forward:3");
  EXPECT_EQ(repeat.of("swiglu_forward"), 3);
  EXPECT_EQ(repeat.of("swiglu_backward"), 1);
  EXPECT_EQ(OperationRepeat{}.of("swiglu_forward"), 1);
  for (const char* bad : {"swiglu_forward", "swiglu_forward:", "swiglu_forward:1", ":3",
                          "swiglu_forward:3x", "swiglu_forward:1001", "adamw:3", "none:3"})
    EXPECT_THROW(parse_operation_repeat(bad), UserError) << bad;
}

}  // namespace
}  // namespace kintsugi
