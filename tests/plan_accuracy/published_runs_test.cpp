// Runs of other programs against what was published about them.
#include <gtest/gtest.h>

#include <cmath>

#include "plan/search/planner.h"
#include "plan_accuracy/measured_rows.h"

namespace kintsugi {
namespace {

// Fraction of the peak of a Frontier GPU with the layouts of the talk, with FLOPs including
// recomputation: 96 B s L h² (1 + s / 6h + V / 16Lh).
double frontier_tflops(const char* preset, int tp, int pp, int dp, std::int64_t batch) {
  PlanJob job{.model = load_preset(preset), .length = 2048, .batch = batch};
  job.precision = DType::F16;
  const Program program =
      with_options(load_program("megatron-deepspeed-frontier"), "flash-attention");
  Planner planner(job, load_machine("frontier"), program.software);
  const Evaluation e =
      planner.timing({.tp = tp, .pp = pp, .dp = dp, .zero = 1, .recompute = Recompute::Full});
  const ModelConfig& m = job.model;
  const double h = static_cast<double>(m.hidden_size), layers = static_cast<double>(m.layers),
               vocabulary = static_cast<double>(m.vocab_size), s = 2048;
  const double flops = 96 * static_cast<double>(batch) * s * layers * h * h *
                       (1 + s / (6 * h) + vocabulary / (16 * layers * h));
  return flops / e.step_s / e.layout.ranks() / 1e12;
}

// Seed 001 and arXiv 2312.12705: 36.14 % and 31.96 % of 191.5 TFLOP/s; weak scaling 100 %.
TEST(Seeds, FrontierShareOfPeak) {
  const auto tflops = frontier_tflops;
  EXPECT_NEAR(tflops("gpt-175b", 4, 16, 1, 640) / 69.2, 1, 0.10);
  EXPECT_NEAR(tflops("gpt-1t", 8, 64, 1, 1600) / 61.2, 1, 0.10);
  EXPECT_NEAR(tflops("gpt-175b", 4, 16, 16, 10240) / tflops("gpt-175b", 4, 16, 1, 640), 1, 0.02);
  EXPECT_NEAR(tflops("gpt-1t", 8, 64, 6, 9600) / tflops("gpt-1t", 8, 64, 1, 1600), 1, 0.02);
}

// Seed 001: batches of 8000 and 8016 sequences on 1,024 and 3,072 GPUs, 89.93 % and 87.05 % of
// the rate of a single replica.
TEST(Seeds, FrontierStrongScaling) {
  EXPECT_NEAR(
      frontier_tflops("gpt-175b", 4, 16, 16, 8000) / frontier_tflops("gpt-175b", 4, 16, 1, 8000),
      0.8993, 0.02);
  EXPECT_NEAR(frontier_tflops("gpt-1t", 8, 64, 6, 8016) / frontier_tflops("gpt-1t", 8, 64, 1, 8016),
              0.8705, 0.02);
}

// Seed 003: parameters, gradients and optimizer shard (ZeRO 1, 32 GPUs) of 13B are 56 GB; 14 GB per
// GPU with four model-parallel ranks. fp16 weights and gradients.
TEST(Seeds, OpenGptX) {
  ModelConfig model;
  model.family = Family::Gpt2;
  model.vocab_size = 50257;
  model.hidden_size = 5120;
  model.layers = 40;
  model.heads = 40;
  model.max_positions = 2048;
  model.complete_and_check();
  const PlanJob job{.model = model, .length = 2048, .batch = 32};
  const auto states = [&](int tp, int pp) {
    return program_memory(MemoryForms::Megatron, job, {.tp = tp, .pp = pp, .dp = 32, .zero = 1},
                          {.gradient_bytes = 2})[0]
        .states;
  };
  EXPECT_NEAR(states(1, 1) / 1e9, 56, 0.5);
  EXPECT_NEAR(states(4, 1) / 1e9, 14, 0.2);
  EXPECT_NEAR(states(2, 2) / 1e9, 14, 0.5);  // the first stage has the embedding
}

// Hugging Face Ultra-Scale Playbook, runs with a pipeline in half of layouts.csv: the number of
// runs, and of those that took at least half a second per micro-batch too long.
TEST(SlowMessages, Chance) {
  const Program nanotron = load_program("nanotron");
  struct Counted {
    std::int64_t gpus;
    double runs, slow;
  };
  for (const Counted& c :
       {Counted{16, 24, 2}, {32, 47, 5}, {64, 84, 13}, {128, 95, 20}, {256, 63, 32}}) {
    const double chance = slow_chance(nanotron, static_cast<double>(c.gpus) / 8);
    const double spread = std::sqrt(chance * (1 - chance) / c.runs);
    EXPECT_NEAR(chance, c.slow / c.runs, 2 * spread) << c.gpus;
  }
  EXPECT_EQ(slow_chance(load_program("megatron-core"), 64), 0);
}

// If at least half of the runs have slow messages, the step time includes them.
TEST(SlowMessages, AreCountedWhereTheyAreUsual) {
  const CsvTable table(
      "preset,seq,program,machine,gpus,TP,PP,DP,MBS,GBS,precision\n"
      "llama-1b,4096,nanotron,h100-cloud,32,2,4,4,1,256,bf16\n",
      "rows.csv");
  MeasuredRow row = read_row(table, 0);
  row.machine.node.gpus = 16;  // two nodes
  const auto evaluated = [&](double nodes) {
    row.program.slow_nodes = nodes;
    return predict(row);
  };
  const RowPrediction never = evaluated(0), seldom = evaluated(100), often = evaluated(1);
  EXPECT_EQ(never.slow_chance, 0);
  EXPECT_LT(seldom.slow_chance, 0.5);
  EXPECT_EQ(seldom.step_s, never.step_s);
  EXPECT_GT(often.slow_chance, 0.5);
  EXPECT_NEAR(often.step_s, never.step_s + often.slow_s, 1e-9);
  EXPECT_EQ(often.slow_s, seldom.slow_s);
  // 64 micro-batches with four messages each on a middle stage, plus fill and drain.
  const double late = 1e-3 * row.program.slow_message_ms;
  EXPECT_NEAR(often.slow_s, (64 * 4 + 2 * 3) * late, 0.01 * often.slow_s);
  row.machine.node.gpus = 32;  // one node
  EXPECT_EQ(evaluated(1).slow_chance, 0);
}

}  // namespace
}  // namespace kintsugi
