#include "plan/machines/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "plan/costs/micro_batch_trace.h"
#include "plan/search/planner.h"

namespace kintsugi {
namespace {

// A step of one layer, embedding and head, as `known` would compute it, each time off by a factor
// of at most 1 ± noise.
MeasuredTraining simulated(const std::string& model, std::int64_t batch, bool fp8,
                           const Machine& known, double noise) {
  PlanJob job{.model = load_preset(model), .length = 1024, .batch = batch};
  job.model.layers = 1;
  if (fp8) job.model.fp8.recipe = Fp8Recipe::Rowwise;
  const ModelLayers layers(job.model);
  const MicroBatchTrace trace = trace_micro_batch(job, layers, {.micro_batch = batch});
  std::mt19937 random(7);
  std::uniform_real_distribution<double> factor(1 - noise, 1 + noise);
  MeasuredTraining training{.name = model, .job = job, .watts = 600};
  for (const OperationTrace* part :
       {&trace.layers.front().plain.forward, &trace.layers.front().plain.backward, &trace.head})
    for (const TracedOperation& o : part->operations) {
      const double seconds =
          operation_s(known.gpu, {.host_us = 0}, o) * (noise > 0 ? factor(random) : 1);
      training.operations.push_back(
          {.name = o.name, .parts = {o}, .calls = 1, .seconds = seconds, .share = seconds});
      training.step_s += seconds;
    }
  for (MeasuredOperation& o : training.operations) o.share /= training.step_s;
  return training;
}

std::vector<MeasuredTraining> simulated(const Machine& known, double noise) {
  return {simulated("llama-8b", 8, false, known, noise),
          simulated("llama-8b", 8, true, known, noise),
          simulated("gpt2-1.5b", 16, false, known, noise)};
}

Machine known_machine() {
  Machine known = load_machine("h200");
  known.gpu.gemm_efficiency = 0.61;
  known.gpu.attention_efficiency = 0.37;
  known.gpu.memory_efficiency = 0.7;
  known.gpu.launch_us = 3;
  known.gpu.gemm_depth = 60;
  known.gpu.gemm_fill = 0.12;
  known.gpu.speeds = {{"matmul_fp8", 1.2}, {"attention_backward", 0.8}, {"cross_entropy", 0.5}};
  return known;
}

// Of an operation, whose time also depends on the efficiency of its kind.
double rate(const Machine& machine, const MeasuredOperation& o) {
  return operation_s(machine.gpu, {.host_us = 0}, o.work());
}

TEST(Calibration, FindsTheConstants) {
  const Machine known = known_machine();
  Machine given = load_machine("h200");
  given.assumed = {"gpu.gemm_efficiency"};
  const auto trained = simulated(known, 0);
  const Machine found = calibrated(given, trained, 3e-6);
  EXPECT_FALSE(found.assumes("gpu.gemm_efficiency"));
  EXPECT_NEAR(found.gpu.gemm_efficiency, 0.61, 0.01);
  EXPECT_NEAR(found.gpu.launch_us, 3, 0.01);
  EXPECT_NEAR(found.gpu.active_w, 600, 0.1);
  EXPECT_NEAR(found.gpu.speed("matmul_fp8"), 1.2, 0.02);
  EXPECT_EQ(found.gpu.bf16_tflops, given.gpu.bf16_tflops);
  for (const MeasuredTraining& training : trained)
    for (const MeasuredOperation& o : training.operations)
      EXPECT_NEAR(rate(found, o) / o.seconds, 1, o.share > 0.01 ? 0.03 : 1) << o.name;
  for (const FitError& error : fit_errors(found, trained)) {
    EXPECT_LT(error.most, 0.03) << error.kind;
    EXPECT_LT(std::abs(error.bias), 0.01) << error.kind;
  }
}

TEST(Calibration, FindsTheShapes) {
  Machine known = known_machine();
  known.gpu.speeds = {};
  known.gpu.attention_depth = 500;
  auto trained = simulated(known, 0);
  trained.push_back(simulated("gpt2-124m", 64, false, known, 0));
  trained.push_back(simulated("llama-1b", 2, false, known, 0));
  for (MeasuredOperation& o : trained.back().operations)  // of other lengths too
    for (TracedOperation& part : o.parts)
      if (part.kind == TracedOperation::Kind::AttentionForward) {
        part.k *= 4, part.n *= 4, part.flops *= 16, part.bytes *= 4;
        o.seconds = operation_s(known.gpu, {.host_us = 0}, part);
      }
  const Machine found = calibrated(load_machine("h200"), trained, 3e-6);
  EXPECT_NEAR(found.gpu.gemm_depth, 60, 20);
  EXPECT_NEAR(found.gpu.gemm_fill, 0.12, 0.04);
  EXPECT_NEAR(found.gpu.attention_depth, 500, 100);
  EXPECT_NEAR(found.gpu.attention_efficiency, 0.37, 0.02);
}

TEST(Calibration, NoiseAveragesOut) {
  const Machine found = calibrated(load_machine("h200"), simulated(known_machine(), 0.05), 3e-6);
  EXPECT_NEAR(found.gpu.gemm_efficiency, 0.61, 0.02);
  EXPECT_NEAR(found.gpu.speed("matmul_fp8"), 1.2, 0.06);
  const auto errors = fit_errors(found, simulated(known_machine(), 0.05));
  ASSERT_FALSE(errors.empty());
  EXPECT_GT(errors.front().median, 0.005) << "the noise is in the errors";
}

TEST(Calibration, FasterThanThePeakRaisesThePeak) {
  auto trained = simulated(known_machine(), 0);
  for (MeasuredTraining& training : trained)
    for (MeasuredOperation& o : training.operations) o.seconds /= 4;
  const Machine faster = calibrated(load_machine("h200"), trained, 0.5e-6);
  EXPECT_EQ(faster.gpu.gemm_efficiency, 1);
  EXPECT_NEAR(faster.gpu.bf16_tflops, 4 * 0.61 * 989.4, 60);
}

TEST(Calibration, NothingMeasuredChangesNothing) {
  Machine given = load_machine("laptop");
  const Machine same = calibrated(given, {}, 0);
  EXPECT_TRUE(same.assumes("gpu.gemm_efficiency"));
  EXPECT_EQ(to_yaml(same), to_yaml(given));
}

// The written description can be read back unchanged.
TEST(Calibration, SpeedsAreInTheFile) {
  const Machine known = known_machine();
  const Machine read = parse_machine(to_yaml(known), "written");
  EXPECT_EQ(read.gpu.speeds, known.gpu.speeds);
  EXPECT_EQ(read.gpu.speed("matmul_fp8"), 1.2);
  EXPECT_EQ(read.gpu.speed("rope"), 1);
  EXPECT_EQ(read.facility.eur_per_gpu_hour, load_machine("h200").facility.eur_per_gpu_hour);
}

// At the power limit, models with more matmuls run at lower clocks.
TEST(Calibration, HeatIsFoundInTheSteps) {
  Machine known = known_machine();
  known.gpu.speeds = {};
  known.gpu.memory_efficiency = 0.3;  // the fractions of matmuls differ more
  std::vector<MeasuredTraining> trained;
  for (const char* model : {"llama-8b", "gpt2-1.5b", "gpt2-124m"})
    trained.push_back(simulated(model, 8, false, known, 0));
  known.gpu.gemm_heat = 0.3;
  for (MeasuredTraining& training : trained)
    training.step_s =
        Planner(training.job, known).evaluate({.micro_batch = training.job.batch}).step_s;
  const Machine found = calibrated(load_machine("h200"), trained, 3e-6);
  EXPECT_NEAR(found.gpu.gemm_heat, 0.3, 0.1);
  TraceCost forward{.total_s = 1, .matmul_s = 0.9}, backward{.total_s = 2, .matmul_s = 1.8};
  add_heat(known.gpu, forward, backward);
  EXPECT_NEAR(forward.total_s, 1 + 0.3 * 0.2 * 0.9, 1e-12);
  EXPECT_NEAR(backward.matmul_s, 1.8 * (1 + 0.3 * 0.2), 1e-12);
}

// ---- from a profile

TraceSpan span(std::int64_t number, const std::string& name, double seconds, double flops,
               std::int64_t bytes) {
  return {.kind = SpanKind::Operation,
          .name = name,
          .begin_s = static_cast<double>(number),
          .end_s = static_cast<double>(number) + seconds,
          .bytes = bytes,
          .operation = number,
          .flops = flops};
}

// Two matmuls with the same work and different shapes, and an operation that counts as two.
TEST(Calibration, FindsOperationsInAProfile) {
  using Kind = TracedOperation::Kind;
  OperationTrace counted;
  counted.operations = {
      {.kind = Kind::Matmul, .name = "matmul", .flops = 64, .bytes = 8, .m = 8, .n = 2, .k = 2},
      {.kind = Kind::Matmul, .name = "retention_forward", .flops = 10, .bytes = 3},
      {.kind = Kind::Memory, .name = "retention_forward", .bytes = 4},
      {.kind = Kind::Matmul, .name = "matmul", .flops = 64, .bytes = 8, .m = 2, .n = 8, .k = 2}};
  std::vector<TraceSpan> spans;
  for (std::int64_t step = 0; step < 2; ++step) {
    spans.push_back(span(3 * step + 3, "matmul 2x8x2", 0.002, 64, 8));
    spans.push_back(span(3 * step + 1, "matmul 8x2x2", 0.001, 64, 8));
    spans.push_back(span(3 * step + 2, "retention_forward", 0.001, 10, 7));
  }
  // 5 ms per step, of which 1 ms is the host's, instead of 4 in the profile.
  const auto found = measured_operations(spans, counted, 2, 0.005);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found.front().name, "matmul 2x8x2");
  EXPECT_EQ(found.front().work().n, 8);
  EXPECT_NEAR(found.front().seconds, 0.002, 1e-9);
  EXPECT_NEAR(found.front().share, 0.5, 1e-9);
  EXPECT_EQ(found.front().calls, 1);
  for (const MeasuredOperation& o : found)
    EXPECT_EQ(o.parts.size(), o.name == "retention_forward" ? 2u : 1u) << o.name;
  counted.operations.pop_back();
  counted.operations.erase(counted.operations.begin());
  EXPECT_THROW(measured_operations(spans, counted, 2, 0.005), Failure) << "matmuls are unknown";
}

}  // namespace
}  // namespace kintsugi
