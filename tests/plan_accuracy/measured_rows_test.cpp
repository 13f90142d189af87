// Predictions of published measurements. The rows are quoted from their sources.
#include "plan_accuracy/measured_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "plan_accuracy/program_memory.h"
#include "support/errors.h"
#include "support/sanitizers.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CsvTable, QuotesAndEmptyCells) {
  const CsvTable table("a,b,c\n1,\"x, \"\"y\"\"\n z\",\n\n2,,3\r\n", "t.csv");
  ASSERT_EQ(table.rows(), 2u);
  EXPECT_EQ(table.at(0, "b"), "x, \"y\"\n z");
  EXPECT_EQ(table.number(1, "c"), 3);
  EXPECT_TRUE(std::isnan(table.number(0, "c")));
  EXPECT_TRUE(std::isnan(table.number(0, "none")));
  EXPECT_EQ(table.line(1), 5);
  EXPECT_EQ(csv_line({"1", "x, \"y\"", ""}), "1,\"x, \"\"y\"\"\",\n");
  EXPECT_THAT(user_error_of([] { CsvTable("a,b\n1\n", "t.csv"); }),
              AllOf(HasSubstr("t.csv line 2"), HasSubstr("1 cells"), HasSubstr("2")));
  EXPECT_THAT(user_error_of([] { CsvTable("a\n\"1\n", "t.csv"); }), HasSubstr("does not end"));
  EXPECT_THAT(user_error_of([&] { table.number(0, "b"); }), HasSubstr("t.csv line 2: b"));
}

constexpr const char* kMeasuredHeader =
    "dataset,layers,hidden,heads,ffn,vocab,seq,hardware,gpus,TP,PP,CP,VPP,DP,MBS,GBS,zero,"
    "recompute,precision,step_time_s,kv_heads,mlp,tied_embeddings,program,status,machine\n";

// arXiv 2104.04473 Table 1, bigscience train/tr11-176B-ml, llm-foundry and DGX Cloud READMEs;
// arXiv 2205.05198 Table 5; Ultra-Scale Playbook with and without its slow messages; OpenGPT-X.
constexpr const char* kRows =
    "megatron_sc21,48,8192,64,32768,51200,2048,A100-80 "
    "Selene,512,8,2,,1,32,4,1536,0,full,fp16,14.453,64,gelu,1,megatron-2021,measured,dgx-a100\n"
    "megatron_sc21,128,25600,160,102400,51200,2048,A100-80 "
    "Selene,3072,8,64,,1,6,1,3072,0,full,fp16,102.63,160,gelu,1,megatron-2021,measured,dgx-a100\n"
    "bigscience,72,14336,64,57344,250880,2048,A100-80 Jean Zay "
    "OPA,384,4,12,,,8,2,2048,1,full,fp16,110.48,64,gelu,1,megatron-deepspeed-2021,measured,jean-"
    "zay\n"
    "dgxc,32,4096,32,14336,128256,8192,H100,64,1,1,2,1,32,1,1024,,,bf16,12.33,8,swiglu,0,megatron-"
    "core,measured,dgx-h100\n"
    "korthikanti,48,6144,64,24576,51200,2048,A100-80,8,8,1,,1,1,4,4,0,selective+sp,fp16,1.10,64,"
    "gelu,1,megatron-2022,measured,dgx-a100\n"
    "korthikanti,96,12288,96,49152,51200,2048,A100-80,64,8,8,,3,1,1,64,0,full,fp16,18.13,96,gelu,1,"
    "megatron-2022,measured,dgx-a100\n"
    "korthikanti,96,12288,96,49152,51200,2048,A100-80,64,8,8,,3,1,1,64,0,selective+sp,fp16,13.75,"
    "96,gelu,1,megatron-2022,measured,dgx-a100\n"
    "korthikanti,105,20480,128,81920,51200,2048,A100-80,280,8,35,,3,1,1,280,0,selective+sp,fp16,37."
    "83,128,gelu,1,megatron-2022,measured,dgx-a100\n"
    "ultrascale,32,4096,32,14336,131072,4096,H100-80 "
    "8/node,16,4,1,,,4,2,256,1,none,bf16,9.595,32,swiglu,0,nanotron,measured,h100-cloud\n"
    "ultrascale,32,4096,32,14336,131072,4096,H100-80 "
    "8/node,512,4,16,,,8,2,256,1,none,bf16,26.26,32,swiglu,0,nanotron,measured,h100-cloud\n"
    "ultrascale,32,4096,32,14336,131072,4096,H100-80 "
    "8/node,64,16,2,,,2,1,256,1,none,bf16,106.39,32,swiglu,0,nanotron,measured,h100-cloud\n"
    "juwels,40,5120,32,20480,,2048,A100-40 JUWELS "
    "Booster,32,2,4,,,4,1,1024,1,selective+sp,fp16,34.505,32,gelu,,megatron-core,measured,juwels-"
    "booster\n"
    "mosaicml,48,7168,56,28672,50368,2048,a100_80gb,64,1,1,,,64,8,1024,3,full,bf16,,56,gelu,1,fsdp,"
    "measured,dgx-a100\n";

TEST(MeasuredRows, PublishedStepTimes) {
  const CsvTable table(std::string(kMeasuredHeader) + kRows, "rows.csv");
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const RowPrediction prediction = predict(read_row(table, i));
    EXPECT_TRUE(prediction.fits) << prediction.why;
    const double measured = table.number(i, "step_time_s");
    if (measured > 0) {
      EXPECT_NEAR(prediction.step_s / measured, 1, 0.12) << table.line(i);
    }
  }
}

TEST(MeasuredRows, SaysWhyNot) {
  const auto why = [](const std::string& row) {
    const CsvTable table(kMeasuredHeader + row, "rows.csv");
    return predict(read_row(table, 0)).why;
  };
  EXPECT_THAT(user_error_of([&] {
                why("x,48,8192,64,,51200,2048,abacus,8,8,1,,,1,1,8,0,,bf16,,,gelu,1,megatron-core,,"
                    "abacus\n");
              }),
              AllOf(HasSubstr("rows.csv line 2"), HasSubstr("abacus")));
  EXPECT_THAT(
      why("x,48,8192,64,,51200,2048,H100,8,8,1,,,1,1,,0,,bf16,,,gelu,1,megatron-core,,dgx-h100\n"),
      HasSubstr("GBS"));
  EXPECT_THAT(
      why("x,4,8192,64,,51200,2048,H100,8,1,8,,,1,1,8,0,,bf16,,,gelu,1,megatron-core,,dgx-h100\n"),
      HasSubstr("PP 8"));
  EXPECT_THAT(user_error_of([&] {
                why("x,48,8192,64,,51200,2048,H100,8,8,1,,,1,1,8,4,,bf16,,,gelu,1,megatron-core,,"
                    "dgx-h100\n");
              }),
              AllOf(HasSubstr("rows.csv line 2"), HasSubstr("zero is 4")));
  // Half a chunk, and half a sequence in a micro-batch.
  for (const char* row :
       {"x,48,8192,64,,51200,2048,H100,8,8,1,,0.5,1,1,8,0,,bf16,,,gelu,1,megatron-core,,dgx-h100\n",
        "x,48,8192,64,,51200,2048,H100,8,8,1,,,1,0.5,8,0,,bf16,,,gelu,1,megatron-core,,dgx-h100\n"})
    EXPECT_THAT(user_error_of([&] { why(row); }),
                AllOf(HasSubstr("rows.csv line 2"), HasSubstr("is 0.5: it must be an integer")));
  // An impossible layout counts as a prediction; an unknown machine does not.
  const CsvTable uncut(std::string(kMeasuredHeader) +
                           "x,4,8192,64,,51200,2048,H100,8,1,8,,,1,1,8,0,,bf16,,,gelu,1,megatron-"
                           "core,failed,dgx-h100\n",
                       "rows.csv");
  const RowPrediction impossible = predict(read_row(uncut, 0));
  EXPECT_TRUE(impossible.impossible && !impossible.fits);
  EXPECT_THAT(accuracy_table(uncut, {impossible}), HasSubstr("100.0"));
  // 175B parameters with their full state on eight GPUs.
  EXPECT_THAT(why("x,96,12288,96,,51200,2048,H100,8,8,1,,,1,1,8,0,full,bf16,,,gelu,1,megatron-core,"
                  ",dgx-h100\n"),
              HasSubstr("needs"));
}

// arXiv 2205.05198 Figure 1, 22B with TP 8: activations without recompute, and with sequence
// parallelism and selective recompute.
TEST(ProgramMemory, ActivationsOfKorthikanti) {
  ModelConfig model;
  model.family = Family::Gpt2;
  model.vocab_size = 51200;
  model.hidden_size = 6144;
  model.layers = 48;
  model.heads = 64;
  model.max_positions = 2048;
  model.complete_and_check();
  const PlanJob job{.model = model, .length = 2048, .batch = 4};
  Layout layout{.tp = 8, .micro_batch = 4};
  const auto activations = [&] {
    return program_memory(MemoryForms::Megatron, job, layout,
                          {.fused_attention = false, .gradient_bytes = 2})[0]
        .activations;
  };
  EXPECT_NEAR(activations() / 63619203072.0, 1, 0.01);
  layout.sequence_parallel = true;
  layout.recompute = Recompute::Selective;
  EXPECT_NEAR(activations() / 10267656192.0, 1, 0.01);
}

constexpr const char* kExpertHeader =
    "dataset,layers,hidden,heads,kv_heads,ffn,vocab,seq,mlp,program,machine,gpus,TP,PP,MBS,GBS,"
    "precision,"
    "EP,dispatch,preset,experts,chosen,imbalance,status,step_time_s\n";
RowPrediction predicted_experts(const std::string& row) {
  const CsvTable table(kExpertHeader + row, "rows.csv");
  return predict(read_row(table, 0));
}

TEST(ExpertRows, HaveAnEp) {
  const auto seconds = [](const std::string& end) {
    const RowPrediction one =
        predicted_experts("megatron,,,,,,,4096,,megatron-core,dgx-h100,16,1,1,1,1024,bf16," + end);
    EXPECT_EQ(one.why, "");
    return one.step_s;
  };
  const double even = seconds("16,all-to-all,qwen3-30b-a3b,,,1,measured,20\n");
  EXPECT_LT(even, seconds("16,all-to-all,qwen3-30b-a3b,,,2,measured,20\n"));
  // One row per visited node instead of one per choice.
  EXPECT_GT(even, seconds("16,deep-ep,qwen3-30b-a3b,,,1,measured,20\n"));
  const RowPrediction grok = predicted_experts(
      "megatron,64,6144,48,8,32768,131072,8192,swiglu,megatron-core,dgx-h100,512,4,8,1,1024,bf16,8,"
      "all-to-all,,8,2,,"
      "measured,16\n");
  EXPECT_GT(grok.step_s, 5);
  EXPECT_LT(grok.step_s, 40);
  EXPECT_THAT(predicted_experts("megatron,,,,,,,4096,,megatron-core,dgx-h100,16,1,1,1,1024,bf16,3,"
                                "all-to-all,qwen3-30b-a3b,,,"
                                "1,measured,20\n")
                  .why,
              HasSubstr("EP 3"));
}

// Tables of three rows each: a prediction takes milliseconds. Rows that were predicted before, with
// this header, are not predicted again.
TEST(MeasuredRows, SurviveMutations) {
  std::mt19937 random(11);
  const CsvTable rows(std::string(kMeasuredHeader) + kRows, "rows.csv");
  const std::string letters = "0123456789,.-\"\nABCz ";
  const int rounds = fewer_under_sanitizers(400);
  std::set<std::string> predicted;
  int read = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string text = kMeasuredHeader;
    for (std::size_t i = 0; i < 3; ++i)
      text += csv_line(rows.row((static_cast<std::size_t>(round) + 5 * i) % rows.rows()));
    for (int change = 0; change < 3; ++change)
      text[random() % text.size()] = letters[random() % letters.size()];
    try {
      const CsvTable table(text, "rows.csv");
      for (std::size_t i = 0; i < table.rows(); ++i) {
        const std::string row = csv_line(table.header()) + csv_line(table.row(i));
        if (predicted.contains(row)) continue;
        const RowPrediction prediction = predict(read_row(table, i));
        EXPECT_TRUE(prediction.step_s > 0 || !prediction.why.empty());
        predicted.insert(row);
      }
      ++read;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(read, rounds / 8);
  EXPECT_GT(predicted.size(), static_cast<std::size_t>(rounds) / 2);
}

}  // namespace
}  // namespace kintsugi
