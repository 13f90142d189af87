#include <gtest/gtest.h>

#include "report/profile/operations.h"
#include "support/profile_spans.h"

namespace kintsugi {
namespace {

TraceSpan matmul_of(TraceSpan span, double flops, std::int64_t bytes) {
  span.work = WorkKind::Matmul;
  span.flops = flops;
  span.bytes = bytes;
  span.dtype = "bf16";
  return span;
}

const OperationTotal& total_of(const OperationTotals& totals, const std::string& name) {
  for (const OperationTotal& one : totals.operations)
    if (one.name == name) return one;
  throw std::runtime_error("no operation " + name);
}

// Two steps: 3 calls of a matmul, 1 of another operation; a call between the steps is left out.
TEST(ProfileOperations, AreSummedByNamePerStep) {
  const OperationTotals totals = operation_totals(spans::one_rank({
      spans::step(1, 0, 10),
      spans::step(2, 20, 30),
      matmul_of(spans::operation(1, "matmul", 0, 2, "forward 0", "layer 0"), 8, 4),
      matmul_of(spans::operation(2, "matmul", 2, 5, "backward 0", "layer 0"), 8, 4),
      matmul_of(spans::operation(3, "matmul", 21, 22, "forward 12 of chunk 1", "layer 10"), 8, 4),
      spans::operation(4, "adamw", 25, 26, "optimizer"),
      spans::operation(5, "between", 12, 13),
  }));
  ASSERT_EQ(totals.operations.size(), 2u);
  const OperationTotal& matmul = totals.operations[0];
  EXPECT_EQ(matmul.name, "matmul");
  EXPECT_DOUBLE_EQ(matmul.calls, 1.5);
  EXPECT_DOUBLE_EQ(matmul.seconds, 3);
  EXPECT_DOUBLE_EQ(matmul.flops, 12);
  EXPECT_DOUBLE_EQ(matmul.flops_per_s(), 4);
  EXPECT_DOUBLE_EQ(matmul.bytes_per_s(), 2);
  EXPECT_DOUBLE_EQ(matmul.intensity(), 2);
  EXPECT_DOUBLE_EQ(matmul.phases.at("forward"), 1.5);
  EXPECT_DOUBLE_EQ(matmul.phases.at("backward"), 1.5);
  EXPECT_DOUBLE_EQ(totals.seconds(), 3.5);
  ASSERT_EQ(totals.phases.size(), 3u);
  EXPECT_EQ(totals.phases.back().name, "optimizer");
  EXPECT_DOUBLE_EQ(totals.phases.back().seconds, 0.5);
}

TEST(ProfileOperations, LayersAreInTheOrderOfTheModel) {
  std::vector<TraceSpan> all{spans::step(1, 0, 10)};
  double at = 0;
  for (const char* layer : {"head", "layer 10", "", "layer 9", "embedding", "layer 10"}) {
    all.push_back(spans::operation(1, "x", at, at + 1, "forward 0", layer));
    at += 1;
  }
  const OperationTotals totals = operation_totals(spans::one_rank(all));
  std::string order;
  for (const PartTotal& one : totals.layers) order += one.name + ";";
  EXPECT_EQ(order, "embedding;layer 9;layer 10;head;;");
  EXPECT_DOUBLE_EQ(totals.layers[2].seconds, 2);
  EXPECT_DOUBLE_EQ(totals.layers[2].phases.at("forward"), 2);
}

// Its kernels, which overlap by one second, and its memset; not the gap between them.
TEST(ProfileOperations, TheTimeIsThatOfTheKernels) {
  const OperationTotals totals = operation_totals(
      spans::one_rank({spans::step(1, 0, 20), spans::operation(1, "matmul", 0, 10),
                       spans::caused(SpanKind::Kernel, 1, "gemm", 1, 4),
                       spans::caused(SpanKind::Kernel, 1, "reduce", 3, 5),
                       spans::caused(SpanKind::Memset, 1, "zero", 7, 8),
                       spans::caused(SpanKind::Runtime, 1, "cudaLaunchKernel", 0, 1),
                       spans::operation(2, "without kernels", 11, 13),
                       spans::of(SpanKind::Kernel, "stray kernel", 14, 17),
                       spans::of(SpanKind::Memcpy, "upload", 18, 19)}));
  EXPECT_DOUBLE_EQ(total_of(totals, "matmul").seconds, 5);
  EXPECT_DOUBLE_EQ(total_of(totals, "without kernels").seconds, 2);
  EXPECT_DOUBLE_EQ(total_of(totals, "stray kernel").seconds, 3);
  EXPECT_DOUBLE_EQ(total_of(totals, "upload").calls, 1);
  EXPECT_EQ(totals.operations.size(), 4u);
}

// 100 FLOP/s and 10 B/s: below 10 FLOP per byte the memory limits.
TEST(ProfileOperations, AttainableIsTheRoofline) {
  const ProfileFacts facts{.precision = "bf16", .peak_flops = 100, .memory_bytes_per_s = 10};
  OperationTotal matmul{
      .work = WorkKind::Matmul, .dtype = "bf16", .seconds = 2, .flops = 100, .bytes = 5};
  EXPECT_DOUBLE_EQ(attainable(matmul, facts), 100);
  EXPECT_DOUBLE_EQ(efficiency(matmul, facts), 0.5);
  matmul.bytes = 25;
  EXPECT_DOUBLE_EQ(attainable(matmul, facts), 40);
  EXPECT_DOUBLE_EQ(efficiency(matmul, facts), 1.25);
  const OperationTotal memory{.work = WorkKind::Memory, .dtype = "fp32", .seconds = 2, .bytes = 4};
  EXPECT_DOUBLE_EQ(attainable(memory, facts), 10);
  EXPECT_DOUBLE_EQ(efficiency(memory, facts), 0.2);
}

TEST(ProfileOperations, NothingIsAttainableThatIsNotKnown) {
  const OperationTotal matmul{
      .work = WorkKind::Matmul, .dtype = "fp32", .seconds = 2, .flops = 100, .bytes = 5};
  EXPECT_EQ(attainable(matmul, {.precision = "bf16", .peak_flops = 1, .memory_bytes_per_s = 1}), 0);
  EXPECT_EQ(attainable(matmul, {.precision = "fp32", .peak_flops = 1}), 0);
  EXPECT_EQ(efficiency(matmul, {}), 0);
  EXPECT_EQ(efficiency({.work = WorkKind::Unknown, .seconds = 1}, {.peak_flops = 1}), 0);
}

TEST(ProfileOperations, PhasesAreNamedWithoutNumbers) {
  EXPECT_EQ(phase_kind("forward 3"), "forward");
  EXPECT_EQ(phase_kind("backward 12 of chunk 1"), "backward");
  EXPECT_EQ(phase_kind("sum gradients"), "sum gradients");
  EXPECT_EQ(phase_kind(""), "");
}

TEST(ProfileOperations, NoStepsGiveNothing) {
  EXPECT_TRUE(
      operation_totals(spans::one_rank({spans::operation(1, "x", 0, 1)})).operations.empty());
  EXPECT_TRUE(operation_totals({}).phases.empty());
}

}  // namespace
}  // namespace kintsugi
