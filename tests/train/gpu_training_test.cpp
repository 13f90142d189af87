// Compares training on a GPU with the CPU backend. Skipped without a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "backend/gpu/gpu_backend.h"
#include "core/file.h"
#include "support/small_run.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

class GpuTrainingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_device_count() == 0) GTEST_SKIP() << "no GPU";
  }

  fs::path train(Backend& backend, const std::string& name, const std::string& settings,
                 const std::string& rest = "", int layers = 2) {
    const fs::path run = directory_ / name;
    // Heads of 16: small, but supported by the fused attention.
    Trainer trainer(backend,
                    parse_run_config(small_config(corpus_, run, settings, rest), "test.yaml",
                                     {"model.hidden_size=64", "data.sequence_length=64",
                                      fmt::format("model.layers={}", layers)}));
    testing::internal::CaptureStdout();
    trainer.run(ResumeMode::Auto);
    testing::internal::GetCapturedStdout();
    return run;
  }

  static std::vector<double> losses_of(const fs::path& run) {
    std::vector<double> losses;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      losses.push_back(nlohmann::json::parse(line).at("loss"));
    return losses;
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(400));
};

TEST_F(GpuTrainingTest, AHundredStepsFollowTheCpuBackend) {
  const auto cpu = make_cpu_backend();
  for (const auto& [precision, tolerance] : {std::pair{"fp32", 2e-3}, std::pair{"bf16", 5e-2}}) {
    const auto cuda = make_gpu_backend();
    const std::string settings =
        fmt::format("steps: 100, eval_every: 0, checkpoint_every: 0, precision: {}", precision);
    const auto expected = losses_of(train(*cpu, fmt::format("cpu-{}", precision), settings));
    const auto losses = losses_of(train(*cuda, fmt::format("cuda-{}", precision), settings));
    ASSERT_EQ(losses.size(), 100u);
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], tolerance) << precision << " step " << i + 1;
    EXPECT_LT(losses.back(), 2.5);
  }
}

TEST_F(GpuTrainingTest, DropoutAndMicroBatchesFollowTheCpuBackend) {
  const auto cpu = make_cpu_backend();
  const auto cuda = make_gpu_backend();
  const std::string settings =
      "steps: 20, eval_every: 0, checkpoint_every: 0, dropout: 0.2, precision: fp64";
  const auto expected = losses_of(train(*cpu, "cpu", settings));
  const auto losses = losses_of(train(*cuda, "cuda", settings));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-9);
}

TEST_F(GpuTrainingTest, ADeterministicRunRepeatsBitForBit) {
  for (const char* precision : {"fp32", "bf16"})
    for (const bool graphs : {false, true}) {
      std::string first;
      for (int repeat = 0; repeat < 2; ++repeat) {
        const auto cuda = make_gpu_backend({.deterministic = true, .graphs = graphs});
        const fs::path run = train(
            *cuda, fmt::format("{}-{}-{}", precision, graphs, repeat),
            fmt::format("steps: 30, eval_every: 0, checkpoint_every: 0, precision: {}", precision));
        const std::string weights = read_text_file(
            state_directory(fs::canonical(run / "checkpoints/latest")) / "optimizer.safetensors");
        if (repeat == 0) first = weights;
        EXPECT_TRUE(weights == first) << precision << " graphs " << graphs;
      }
    }
}

TEST_F(GpuTrainingTest, GraphsAndRecomputeChangeNoBit) {
  std::string first;
  for (const char* recompute : {"none", "selective", "full"})
    for (const bool graphs : {false, true}) {
      const auto cuda = make_gpu_backend({.deterministic = true, .graphs = graphs});
      const fs::path run = train(*cuda, fmt::format("{}-{}", recompute, graphs),
                                 "steps: 10, eval_every: 0, checkpoint_every: 0, precision: bf16",
                                 fmt::format("layout: {{recompute: {}}}\n", recompute));
      const std::string weights = read_text_file(run / "checkpoints/latest/model.safetensors");
      if (first.empty()) first = weights;
      EXPECT_TRUE(weights == first) << recompute << " graphs " << graphs;
    }
}

// The CPU backend quantizes as the GPU does; sums differ.
TEST_F(GpuTrainingTest, Fp8FollowsTheCpuBackend) {
  const auto cuda = make_gpu_backend();
  if (const std::string why = cuda->why_no_fp8(false); !why.empty()) GTEST_SKIP() << why;
  const auto cpu = make_cpu_backend();
  for (const char* recipe : {"rowwise", "tensorwise"}) {
    const std::string settings = fmt::format(
        "steps: 40, eval_every: 0, checkpoint_every: 0, precision: bf16, fp8: {{recipe: {}, "
        "statistics_every: 10}}",
        recipe);
    const auto expected = losses_of(train(*cpu, fmt::format("cpu-{}", recipe), settings));
    const auto losses = losses_of(train(*cuda, fmt::format("cuda-{}", recipe), settings));
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 0.1) << recipe << " step " << i + 1;
  }
}

TEST_F(GpuTrainingTest, GraphsAndRecomputeChangeNoBitInFp8) {
  if (const std::string why = make_gpu_backend()->why_no_fp8(false); !why.empty())
    GTEST_SKIP() << why;
  std::string first;
  for (const char* recompute : {"none", "selective", "full"})
    for (const bool graphs : {false, true})
      for (const bool keep : {true, false}) {
        const auto cuda = make_gpu_backend({.deterministic = true, .graphs = graphs});
        const fs::path run = train(
            *cuda, fmt::format("fp8-{}-{}-{}", recompute, graphs, keep),
            fmt::format("steps: 10, eval_every: 0, checkpoint_every: 0, precision: bf16, fp8: "
                        "{{recipe: rowwise, keep_weights: {}}}",
                        keep),
            fmt::format("layout: {{recompute: {}}}\n", recompute));
        const std::string weights = read_text_file(run / "checkpoints/latest/model.safetensors");
        if (first.empty()) first = weights;
        EXPECT_TRUE(weights == first) << recompute << " graphs " << graphs << " keep " << keep;
      }
}

TEST_F(GpuTrainingTest, OffloadChangesNoBitWhereTheDeviceUpdates) {
  const std::string settings = "steps: 10, eval_every: 4, checkpoint_every: 5, precision: ";
  for (const char* precision : {"fp32", "bf16", "fp64"}) {
    std::string first;
    for (const char* offload :
         {"", "offload: {optimizer: true, update: device}\n",
          "offload: {optimizer: true, activations: true, update: device}\n"}) {
      const auto cuda = make_gpu_backend({.deterministic = true});
      const fs::path run =
          train(*cuda, fmt::format("{}-{}", precision, std::string(offload).size()),
                settings + precision, std::string("layout: {recompute: full}\n") + offload, 5);
      const std::string state = read_text_file(
          state_directory(fs::canonical(run / "checkpoints/latest")) / "optimizer.safetensors");
      if (first.empty()) first = state;
      EXPECT_TRUE(state == first) << precision << " " << offload;
    }
  }
}

// Gradients that are kept in host memory between micro-batches are summed in another order.
TEST_F(GpuTrainingTest, OffloadedGradientsAreTheSameRun) {
  for (const char* precision : {"fp64", "bf16"}) {
    std::vector<double> expected;
    for (const char* offload : {"", "offload: {gradients: true}\n",
                                "offload: {optimizer: true, gradients: true, update: device}\n",
                                "offload: {optimizer: true, gradients: true, update: host}\n"}) {
      const auto cuda = make_gpu_backend({.deterministic = true, .host = make_cpu_backend()});
      const auto losses = losses_of(train(
          *cuda, fmt::format("{}-{}", precision, std::string(offload).size()),
          fmt::format("steps: 20, eval_every: 0, checkpoint_every: 0, precision: {}", precision),
          offload));
      if (expected.empty()) expected = losses;
      for (std::size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i], expected[i], std::string(precision) == "fp64" ? 1e-9 : 2e-2)
            << precision << " " << offload << " step " << i + 1;
    }
  }
}

TEST_F(GpuTrainingTest, UpdatesOnTheHostFollowThoseOnTheDevice) {
  for (const char* precision : {"fp32", "bf16"}) {
    std::vector<double> expected;
    for (const char* update : {"device", "host", "auto"}) {
      const auto cuda = make_gpu_backend({.deterministic = true, .host = make_cpu_backend()});
      const auto losses = losses_of(train(
          *cuda, fmt::format("{}-{}", precision, update),
          fmt::format("steps: 20, eval_every: 0, checkpoint_every: 0, precision: {}", precision),
          fmt::format("offload: {{optimizer: true, update: {}}}\n", update)));
      if (expected.empty()) expected = losses;
      for (std::size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i], expected[i], std::string(precision) == "fp32" ? 1e-4 : 2e-2)
            << precision << " " << update << " step " << i + 1;
    }
  }
}

TEST_F(GpuTrainingTest, ThePlanIsWhatTheDeviceAllocates) {
  const auto cuda = make_gpu_backend();
  const RunConfig config =
      parse_run_config(small_config(corpus_, directory_ / "plan", "steps: 5"), "test.yaml",
                       {"model.hidden_size=2048", "model.heads=16", "model.ffn_size=8192"});
  PlanningAllocator nothing;
  const Engine plan(*cuda, nothing, engine_options(config));
  const std::size_t before = cuda->available_bytes();
  const Engine engine(*cuda, *cuda, engine_options(config));
  const std::size_t allocated = before - cuda->available_bytes();
  EXPECT_EQ(engine.arena().total_bytes(), plan.arena().total_bytes());
  // The driver allocates whole pages of 2 MiB.
  EXPECT_NEAR(static_cast<double>(allocated), static_cast<double>(plan.arena().total_bytes()),
              64e6);
}

}  // namespace
}  // namespace kintsugi
