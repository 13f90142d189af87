#include "plan/machines/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"

namespace kintsugi {
namespace {

// From the times of a known machine its constants are recovered, from any start values.
TEST(Calibration, FindsTheConstants) {
  Machine known = load_machine("dgx-a100");
  known.gpu.gemm_efficiency = 0.61;
  known.gpu.attention_efficiency = 0.37;
  known.gpu.memory_efficiency = 0.7;
  known.gpu.launch_us = 3;
  const Software engine{.host_us = 0};
  std::vector<MeasuredOperation> measured;
  for (const std::int64_t n : {2048, 4096, 8192}) {
    const double size = static_cast<double>(n);
    TracedOperation o{.kind = TracedOperation::Kind::Matmul,
                      .dtype = DType::BF16,
                      .flops = 2 * size * size * size,
                      .bytes = 0,
                      .m = n,
                      .n = n,
                      .k = n};
    measured.push_back({o, matmul_s(known.gpu, engine, o)});
    o = {.kind = TracedOperation::Kind::AttentionForward,
         .dtype = DType::BF16,
         .flops = 64 * size * size * 128,
         .bytes = 0,
         .m = 32,
         .n = n,
         .k = n,
         .head_dim = 128};
    measured.push_back({o, attention_s(known.gpu, engine, o)});
    measured.push_back({{.kind = TracedOperation::Kind::Memory, .bytes = size * size},
                        memory_s(known.gpu, engine, size * size)});
  }
  measured.push_back({{.kind = TracedOperation::Kind::Memory, .bytes = 8}, 3e-6});
  Machine given = load_machine("dgx-a100");
  given.assumed = {"gpu.gemm_efficiency"};
  const Machine found = calibrated(given, measured);
  EXPECT_FALSE(found.assumes("gpu.gemm_efficiency"));
  EXPECT_NEAR(found.gpu.gemm_efficiency, 0.61, 0.005);
  EXPECT_NEAR(found.gpu.attention_efficiency, 0.37, 0.005);
  EXPECT_NEAR(found.gpu.memory_efficiency, 0.7, 0.005);
  EXPECT_NEAR(found.gpu.launch_us, 3, 0.01);
  // Measurements above the specified peak raise the peak.
  for (MeasuredOperation& m : measured) m.seconds /= 4;
  const Machine faster = calibrated(load_machine("dgx-a100"), measured);
  EXPECT_EQ(faster.gpu.gemm_efficiency, 1);
  EXPECT_GT(faster.gpu.bf16_tflops, 600);
}

TEST(Calibration, MeasuresThisProcessor) {
  const auto backend = make_cpu_backend(1);
  const auto measured = measure_operations(*backend, DType::F32, 128, 0.001);
  EXPECT_EQ(measured.size(), 11u);
  for (const MeasuredOperation& m : measured) EXPECT_GT(m.seconds, 0) << m.operation.name;
  Machine assumed = load_machine("laptop");
  assumed.assumed = {"gpu.gemm_efficiency"};
  EXPECT_TRUE(calibrated(assumed, {}).assumes("gpu.gemm_efficiency")) << "nothing was measured";
  const Machine machine = calibrated(load_machine("laptop"), measured);
  // The written description can be read back unchanged.
  const Machine read = parse_machine(to_yaml(machine), "written");
  EXPECT_EQ(read.gpu.gemm_efficiency, machine.gpu.gemm_efficiency);
  EXPECT_EQ(read.facility.eur_per_gpu_hour, -1);
  EXPECT_THAT(calibration_table(machine, measured), testing::HasSubstr("attention_backward"));
}

}  // namespace
}  // namespace kintsugi
