// Predicted memory of other programs against their published logs. Rows are quoted from the
// sources.
#include "plan_accuracy/program_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan_accuracy/measured_rows.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t tokens) {
  ModelConfig model;
  model.family = Family::Gpt2;
  model.vocab_size = tokens;
  model.hidden_size = hidden;
  model.layers = layers;
  model.heads = heads;
  model.max_positions = 2048;
  model.complete_and_check();
  return model;
}

// sajal-vt/Megatron-DeepSpeed-ORNL, a log of 16 nodes: torch's peak of all stages, in bytes.
TEST(ProgramMemory, FrontierLog) {
  const std::vector<double> measured = {35548325888, 32962504704, 32647931392, 32333358080,
                                        32018784768, 31704211456, 31389638144, 31075064832,
                                        30760491520, 30444869632, 30131344896, 29816771584,
                                        29502198272, 29187624960, 28873051648, 30553248256};
  PlanJob job{.model = gpt(96, 12288, 96, 51200), .length = 2048, .batch = 1280};
  job.precision = DType::F16;
  const Layout layout{
      .tp = 4, .pp = 16, .dp = 2, .micro_batch = 1, .zero = 1, .recompute = Recompute::Full};
  const auto stages = program_memory(MemoryForms::MegatronDeepSpeed, job, layout,
                                     {.fused_attention = false, .gradient_bytes = 2});
  ASSERT_EQ(stages.size(), measured.size());
  for (std::size_t i = 0; i < stages.size(); ++i)
    EXPECT_NEAR(stages[i].total() / measured[i], 1, 0.03) << i;
  // Six layers of 2 sbh, and a quarter of the received message: 300 MiB per micro-batch in flight.
  for (std::size_t i = 1; i + 2 < stages.size(); ++i)
    EXPECT_NEAR((stages[i].total() - stages[i + 1].total()) / (measured[i] - measured[i + 1]), 1,
                0.004);
  EXPECT_NEAR(stages[5].total() - stages[6].total(), 314572800, 0.001 * 314572800);
  EXPECT_NEAR(stages[5].states / (6 * 12 * 12288.0 * 12288 / 4), 9, 1e-6);
}

// arXiv 2205.05198 Figure 1: parameters and optimizer, and activations of the first stage.
TEST(ProgramMemory, FigureOfKorthikanti) {
  struct Row {
    std::int64_t layers, hidden, heads;
    int pp, chunks, micro;
    double states, plain, selective;
  };
  for (const Row& row :
       {Row{48, 6144, 64, 1, 1, 4, 48922361856.0, 63619203072.0, 10267656192.0},
        Row{96, 12288, 96, 8, 3, 1, 48922361856.0, 71772930048.0, 13262389248.0},
        Row{105, 20480, 128, 35, 3, 1, 33973862400.0, 122431733760.0, 24777850880.0},
        Row{128, 25600, 160, 64, 1, 1, 35389440000.0, 140928614400.0, 28521267200.0}}) {
    const PlanJob job{.model = gpt(row.layers, row.hidden, row.heads, 51200),
                      .length = 2048,
                      .batch = 8 * row.pp * row.micro};
    Layout l{.tp = 8, .pp = row.pp, .chunks = row.chunks, .micro_batch = row.micro};
    const auto stages = [&] {
      return program_memory(MemoryForms::Megatron, job, l, {.fused_attention = false});
    };
    EXPECT_NEAR(stages()[static_cast<std::size_t>(row.pp / 2)].states / row.states, 1, 0.03);
    EXPECT_NEAR(stages()[0].activations / row.plain, 1, 0.03) << row.layers;
    l.sequence_parallel = true;
    l.recompute = Recompute::Selective;
    EXPECT_NEAR(stages()[0].activations / row.selective, 1, 0.03) << row.layers;
  }
}

constexpr const char* kHeader =
    "dataset,layers,hidden,heads,ffn,vocab,seq,hardware,gpus,TP,PP,DP,MBS,GBS,zero,recompute,"
    "precision,kv_heads,mlp,tied_embeddings,options,program,machine,mem_kind\n";
RowPrediction predicted(const std::string& row) {
  const CsvTable table(kHeader + row, "rows.csv");
  return predict(read_row(table, 0));
}

// bigscience-workshop, tr11-176B-ml, nvidia-smi in GiB; the memory of one of these GPUs is full.
TEST(ProgramMemory, BigScienceDevices) {
  const auto row = [](int layers, int hidden, int tp, int pp, int dp, int micro,
                      const char* precision, const std::string& options = "") {
    return predicted("bigscience," + std::to_string(layers) + "," + std::to_string(hidden) +
                     ",64,,250880,2048,A100-80 Jean Zay OPA," + std::to_string(tp * pp * dp) + "," +
                     std::to_string(tp) + "," + std::to_string(pp) + "," + std::to_string(dp) +
                     "," + std::to_string(micro) + ",2048,1,full," + precision + ",64,gelu,1," +
                     options + ",megatron-deepspeed-2021,jean-zay,nvidia-smi max\n");
  };
  const double gib = 1.073741824;
  EXPECT_NEAR(row(72, 14336, 8, 12, 4, 1, "fp16").memory_gb / (29 * gib), 1, 0.1);
  EXPECT_NEAR(row(72, 14336, 8, 12, 4, 8, "fp16").memory_gb / (69 * gib), 1, 0.1);
  EXPECT_NEAR(row(72, 14336, 8, 2, 24, 2, "fp16").memory_gb / (76 * gib), 1, 0.1);
  EXPECT_NEAR(row(6, 14336, 8, 1, 1, 2, "fp16").memory_gb / (54 * gib), 1, 0.1);
  const RowPrediction full = row(10, 14336, 8, 1, 1, 1, "fp16");
  EXPECT_TRUE(full.fits) << full.why;
  EXPECT_NEAR(full.memory_gb / (80 * gib), 1, 0.05);
  for (const int micro : {1, 2})
    EXPECT_THAT(row(100, 12288, 4, 6, 16, micro, "bf16", "fp32-gradients").why, HasSubstr("needs"));
  EXPECT_TRUE(row(94, 13312, 4, 12, 8, 2, "bf16", "fp32-gradients").fits);
}

// pytorch/torchtitan benchmarks/llama3_h100_202412 and llama3-8b_h200_202506, GiB.
TEST(ProgramMemory, Torchtitan) {
  const auto row = [](int length, const char* machine, int gpus, int micro, const char* recompute,
                      const char* options) {
    return predicted("torchtitan,32,4096,32,14336,128256," + std::to_string(length) + ",," +
                     std::to_string(gpus) + ",1,1," + std::to_string(gpus) + "," +
                     std::to_string(micro) + "," + std::to_string(gpus * micro) + ",3," +
                     recompute + ",bf16,8,swiglu,0," + options + ",torchtitan," + machine + ",\n")
               .memory_gb /
           1.073741824;
  };
  const char* teton = "grand-teton-h100";
  EXPECT_NEAR(row(8192, teton, 8, 2, "selective", "hopper") / 82.4, 1, 0.08);
  EXPECT_NEAR(row(8192, teton, 128, 2, "selective", "hopper compile") / 62.0, 1, 0.08);
  EXPECT_NEAR(row(32768, teton, 8, 1, "full", "hopper compile") / 83.9, 1, 0.08);
  EXPECT_NEAR(row(8192, "dgx-h200", 32, 2, "selective", "hopper compile compiled-loss") / 47.96, 1,
              0.08);
}

// The rule of nanotron's build_model, by hand: embedding, layers, norm, head, cast and loss fill
// one stage after the other, each until the sum of weights exceeds its share. A layer is 1, the
// head 4.
TEST(ProgramMemory, NanotronSplitsByWeight) {
  ModelConfig model;
  model.family = Family::Llama;
  model.vocab_size = 131072;
  model.hidden_size = 2048;
  model.ffn_size = 8192;
  model.layers = 16;
  model.heads = 32;
  model.max_positions = 4096;
  model.complete_and_check();
  EXPECT_THAT(nanotron_split(model, 1).layers, ElementsAre(16));
  EXPECT_THAT(nanotron_split(model, 2).layers, ElementsAre(11, 5));
  EXPECT_THAT(nanotron_split(model, 8).layers, ElementsAre(3, 3, 2, 3, 2, 3, 0, 0));
  EXPECT_EQ(nanotron_split(model, 8).head, 6);  // the last stage has only cast and loss
  EXPECT_EQ(nanotron_split(model, 16).layers.back(), -1);
  const PlanJob job{.model = model, .length = 4096, .batch = 256};
  Layout layout{.pp = 8, .dp = 8};
  EXPECT_EQ(refusal(MemoryForms::Nanotron, job, layout, 32), "");
  EXPECT_THAT(refusal(MemoryForms::Nanotron, job, layout, 6),
              HasSubstr("at least 7 micro-batches"));
  layout.pp = 16;
  EXPECT_THAT(refusal(MemoryForms::Nanotron, job, layout, 32), HasSubstr("nothing for stage 15"));
  EXPECT_EQ(refusal(MemoryForms::Megatron, job, layout, 1), "");
}

// Ultra-Scale Playbook, bench_final.csv: torch's peak of the first stage in GiB.
TEST(ProgramMemory, UltraScale) {
  const auto row = [](bool large, int tp, int pp, int dp, int micro, int zero) {
    return predicted(std::string("ultrascale,") + (large ? "32,4096,32,14336" : "16,2048,32,8192") +
                     ",131072,4096,H100," + std::to_string(tp * pp * dp) + "," +
                     std::to_string(tp) + "," + std::to_string(pp) + "," + std::to_string(dp) +
                     "," + std::to_string(micro) + ",256," + std::to_string(zero) +
                     ",none,bf16,32,swiglu," + (large ? "0" : "1") + ",,nanotron,h100-cloud,\n");
  };
  const double gib = 1.073741824;
  EXPECT_NEAR(row(false, 1, 1, 8, 1, 0).memory_gb / (36.7 * gib), 1, 0.05);
  EXPECT_NEAR(row(false, 1, 1, 16, 2, 1).memory_gb / (35.0 * gib), 1, 0.1);
  EXPECT_NEAR(row(false, 1, 8, 8, 2, 1).memory_gb / (24.4 * gib), 1, 0.05);
  EXPECT_NEAR(row(true, 1, 32, 8, 1, 1).memory_gb / (59.7 * gib), 1, 0.05);
  EXPECT_NEAR(row(true, 16, 1, 8, 8, 0).memory_gb / (40.6 * gib), 1, 0.05);
  EXPECT_TRUE(row(true, 1, 32, 8, 1, 1).fits);
  EXPECT_FALSE(row(true, 1, 1, 8, 1, 0).fits);  // 8.86B parameters of 20 bytes, not sharded
}

// arXiv 2407.21783 Table 4 and arXiv 2104.04473 Table 2: they ran, so they fit.
TEST(ProgramMemory, TheLargestRunsFit) {
  const RowPrediction llama = predicted(
      "llama3,126,16384,128,53248,128256,8192,H100-80 RoCE,16384,8,16,128,,2048,,,bf16,8,swiglu,0,"
      ",megatron-core,dgx-h100,\n");
  EXPECT_TRUE(llama.fits) << llama.why;
  const RowPrediction zero3 = predicted(
      "megatron_sc21,105,20480,128,81920,51200,2048,A100-80 Selene,640,1,1,640,4,2560,3,full,fp16,"
      "128,gelu,1,,deepspeed-zero3,dgx-a100,\n");
  EXPECT_TRUE(zero3.fits) << zero3.why;
}

}  // namespace
}  // namespace kintsugi
