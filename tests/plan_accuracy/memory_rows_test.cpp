// Peaks that Megatron's own tests recorded (NVIDIA/Megatron-LM, tests/functional_tests/test_cases,
// golden values at d98e8a6), predicted from their arguments.
#include "plan_accuracy/memory_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "plan_accuracy/megatron_memory.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kMemoryHeader =
    "dataset,case,platform,pp_stage,num_layers,hidden_size,num_attention_heads,num_query_groups,"
    "seq_length,vocab_size,micro_batch_size,global_batch_size,tensor_model_parallel_size,"
    "pipeline_model_parallel_size,num_layers_per_virtual_pipeline_stage,context_parallel_size,"
    "expert_model_parallel_size,num_experts,moe_router_topk,sequence_parallel,"
    "use_distributed_optimizer,recompute_granularity,bf16,fp16,fp8_format,swiglu,"
    "untie_embeddings_and_output_weights,deterministic_mode,transformer_impl,attention_backend,"
    "tokenizer,other_args,gpus_total,mem_max_allocated_bytes,params_optimizer_bytes,"
    "activation_bytes\n";

// One after the other: fused attention with one sequence in 29 of 32 layers in flight; flash
// attention's copies; full recomputation; gated; five micro-batches in a group; context parallel;
// fp16 with Megatron's own attention; deferred weight gradients of the head; experts; T5.
constexpr const char* kMemoryRows =
    "golden,gpt/7b_tp1_pp4,dev_dgx_h100,,32,4096,32,8,8192,131073,1,8,1,4,1,,,,,,True,,True,,,,"
    "True,True,transformer_engine,,NullTokenizer,max-position-embeddings=8192 "
    "group-query-attention,8,60720852992,,\n"
    "golden,gpt/7b_tp4_pp1,dev_dgx_a100,,32,4096,32,8,8192,131073,2,8,4,1,,,,,,,True,,True,,,,"
    "True,True,transformer_engine,,NullTokenizer,max-position-embeddings=8192 "
    "group-query-attention,8,58188115968,,\n"
    "golden,gpt/full_recompute,dev_dgx_a100,,12,512,8,,1024,,4,32,1,1,,,,,,,,full,True,,,,,True,"
    "transformer_engine,unfused,gpt2-bpe,max-position-embeddings=1024,,2534070272,,\n"
    "golden,gpt/swiglu,dev_dgx_h100,,12,512,8,,1024,,4,32,1,4,,,,,,,,,True,,,True,,True,"
    "transformer_engine,,gpt2-bpe,max-position-embeddings=1024,8,2211485184,,\n"
    "golden,gpt/tunable_overlap,dev_dgx_h100,,12,512,8,,1024,,4,40,1,4,1,,,,,,,,True,,,,,True,"
    "transformer_engine,unfused,gpt2-bpe,max-position-embeddings=1024,8,4622615552,,\n"
    "golden,gpt/tp2_pp2_cp2,dev_dgx_h100,,12,512,8,,1024,,4,32,2,2,,2,,,,True,,,True,,,,,,"
    "transformer_engine,flash,gpt2-bpe,max-position-embeddings=1024,8,935777792,,\n"
    "golden,gpt/tp1_pp4,dev_dgx_a100,,12,512,8,,1024,,4,32,1,4,,,,,,,,,,True,,,,True,local,,"
    "gpt2-bpe,max-position-embeddings=1024,8,2676108288,,\n"
    "golden,gpt/tp2_pp2_defer_embedding_wgrad_compute,dev_dgx_a100,,12,512,8,,1024,,4,32,2,2,,,,,,,"
    ",,True,,,,,True,transformer_engine,,gpt2-bpe,max-position-embeddings=1024,8,1851271680,,\n"
    "golden,moe/tp2_pp1_8experts2parallel,dev_dgx_a100,,12,512,8,,1024,,4,32,2,1,,,2,8,1,True,"
    "True,,True,,,,,True,transformer_engine,unfused,gpt2-bpe,max-position-embeddings=1024 "
    "disable-bias-linear,,3099980800,,\n"
    "golden,t5/tp1_pp1,dev_dgx_a100,,,768,12,,,,4,32,1,1,,,,,,,,,True,,,,,True,"
    "transformer_engine,unfused,bert-cased,max-position-embeddings=512 encoder-num-layers=12 "
    "decoder-num-layers=12 decoder-seq-length=128 encoder-seq-length=512,8,6176353280,,\n";

TEST(MemoryRows, GoldenValuesOfMegatron) {
  const CsvTable table(std::string(kMemoryHeader) + kMemoryRows, "memory.csv");
  ASSERT_TRUE(is_memory_table(table));
  ASSERT_EQ(table.rows(), 10u);
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const MemoryPrediction p = predict_memory(table, i);
    EXPECT_EQ(p.why, "") << table.at(i, "case");
    EXPECT_NEAR(p.peak / table.number(i, "mem_max_allocated_bytes"), 1, 0.025)
        << table.at(i, "case");
  }
}

// 12 layers of width 512 with 50,257 tokens, by hand: parameters with biases, norms and positions,
// 6 + 12 / 8 bytes each with eight shards; logits of 4096 tokens with 50,304 entries, six bytes.
TEST(MemoryRows, SmallModelByHand) {
  const std::string row =
      "golden,gpt/x,dev_dgx_a100,,12,512,8,,1024,,4,32,1,1,,,,,,,True,,True,,,,,True,"
      "transformer_engine,unfused,gpt2-bpe,max-position-embeddings=1024,8,1,,\n";
  const CsvTable table(kMemoryHeader + row, "memory.csv");
  const MegatronMemory memory = megatron_memory(read_megatron_run(table, 0));
  const double layer = 12 * 512 * 512 + 13 * 512;
  const double parameters = 12 * layer + 50304 * 512 + 1024 * 512 + 2 * 512;
  EXPECT_DOUBLE_EQ(memory.states, parameters * (6 + 12 / 8.0));
  EXPECT_DOUBLE_EQ(memory.loss, 6.0 * 4096 * 50304);
  EXPECT_DOUBLE_EQ(memory.activations, 12 * 4096 * 512 * (34 + 5 * 8 * 1024 / 512.0));
  EXPECT_DOUBLE_EQ(memory.libraries, (2 * 32 + 4) * 1048576.0);
}

// gpt3_15b_8t_release: the peak minus the memory allocated between steps. The difference does not
// depend on the number of GPUs, which the rows do not give. The second row has the fused loss.
TEST(MemoryRows, ActivationsOfThe15B) {
  const std::string start = "golden,gpt/15b,dev_dgx_";
  const std::string model = ",,32,6144,48,8,4096,,4,256,";
  const std::string end =
      "True,True,,True,,,,True,,transformer_engine,,sentencepiece-256k,max-position-embeddings="
      "4096 position-embedding-type=rope group-query-attention disable-bias-linear";
  const CsvTable table(kMemoryHeader + start + "h100" + model + "8,1,,,,,," + end + ",64,1,,\n" +
                           start + "gb200" + model + "4,2,8,,,,," + end +
                           " cross-entropy-loss-fusion,64,1,,\n",
                       "memory.csv");
  const double above[] = {28160194560.0 - 13269043200.0, 42639351808.0 - 14700898304.0};
  for (const std::size_t i : {0, 1}) {
    const MegatronRun run = read_megatron_run(table, i);
    ASSERT_EQ(run.problem, "");
    const MegatronMemory memory = megatron_memory(run);
    EXPECT_NEAR((memory.activations + memory.loss + memory.ends) / above[i], 1, 0.02) << i;
  }
}

// gpt3_mcore_te_tp2_zp_z3_resume_fsdp_dtensor: weights, gradients and optimizer in four shards.
TEST(MemoryRows, MegatronFsdp) {
  const std::string header = std::string("data_parallel_sharding_strategy,") + kMemoryHeader;
  const CsvTable table(
      header +
          "optim_grads_params,golden,gpt/z3,dev_dgx_h100,,12,512,8,,1024,,4,32,2,,,,,,,,True,,True,"
          ",,,,True,transformer_engine,,gpt2-bpe,max-position-embeddings=1024,8,1469652992,,\n",
      "memory.csv");
  const MemoryPrediction p = predict_memory(table, 0);
  EXPECT_EQ(p.why, "");
  EXPECT_NEAR(p.peak / 1469652992, 1, 0.02);
}

TEST(MemoryRows, SaysWhatIsNotUnderstood) {
  const std::string head = "golden,gpt/x,dev_dgx_a100,,12,512,8,,1024,,4,";
  const std::string tail = ",True,transformer_engine,,gpt2-bpe,";
  const std::string rows =
      head + "32,1,1,,,,,,,,,True,,hybrid,,," + tail.substr(1) + ",8,1,,\n" +          // FP8
      head + "32,1,1,,,,,,,,,True,,,,," + tail.substr(1) + "optimizer=muon,8,1,,\n" +  // optimizer
      head + ",8,4,,,,,,,True,,True,,,,," + tail.substr(1) + ",,1,,\n" +  // GPUs and batch
      head + "32,1,1,,,,,,,,,True,,,,,True,transformer_engine,,unheard-of,,8,1,,\n";
  const CsvTable table(kMemoryHeader + rows, "memory.csv");
  std::vector<MemoryPrediction> all;
  for (std::size_t i = 0; i < table.rows(); ++i) all.push_back(predict_memory(table, i));
  EXPECT_EQ(all[0].why, "FP8");
  EXPECT_THAT(all[1].why, HasSubstr("optimizer"));
  EXPECT_THAT(all[2].why, HasSubstr("number of GPUs"));
  EXPECT_THAT(all[3].why, HasSubstr("vocabulary"));
  EXPECT_THAT(memory_accuracy_table(table, all),
              AllOf(HasSubstr("golden "), HasSubstr("     1  FP8\n"), HasSubstr("vocabulary")));
  EXPECT_THAT(evaluated_memory_csv(table, all), HasSubstr("predicted_bytes,predicted_why\n"));
  const std::string wrong = head + "many,1,1,,,,,,,,,True,,,,," + tail.substr(1) + ",8,1,,\n";
  const CsvTable bad(kMemoryHeader + wrong, "memory.csv");
  EXPECT_THAT(user_error_of([&] { predict_memory(bad, 0); }),
              AllOf(HasSubstr("memory.csv line 2"), HasSubstr("global_batch_size")));
}

// Errors of +20, -10 and 0 percent.
TEST(MemoryRows, TableOfErrors) {
  const std::string start =
      "golden,gpt/x,dev_dgx_a100,,12,512,8,,1024,,4,32,1,1,,,,,,,,,True,,,,,"
      "True,transformer_engine,,gpt2-bpe,,8,";
  const CsvTable table(kMemoryHeader + start + "1000,,\n" + start + "1000,,\n" + start + "1000,,\n",
                       "memory.csv");
  const std::string text =
      memory_accuracy_table(table, {{.peak = 1200}, {.peak = 900}, {.peak = 1000}});
  EXPECT_THAT(text, HasSubstr("     3           3 |   10.0    10.0     3.3    20.0          2\n"));
}

TEST(MemoryRows, SurviveMutations) {
  std::mt19937 random(5);
  const std::string good = std::string(kMemoryHeader) + kMemoryRows;
  const std::string letters = "0123456789,.-\"\nABCz =";
  int read = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (int change = 0; change < 3; ++change)
      text[random() % text.size()] = letters[random() % letters.size()];
    try {
      const CsvTable table(text, "memory.csv");
      for (std::size_t i = 0; i < table.rows(); ++i) {
        const MemoryPrediction p = predict_memory(table, i);
        EXPECT_TRUE(!p.why.empty() || (std::isfinite(p.peak) && p.peak > 0)) << text;
      }
      ++read;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(read, 300);
}

}  // namespace
}  // namespace kintsugi
