// kintsugi plan --model as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/plan_command.h"
#include "train/config.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using PlanSearchCommand = PlanCommandTest;

TEST_F(PlanSearchCommand, PrintsTheBest) {
  const Outcome outcome =
      run("--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 --tokens 100B");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("tok/s/GPU"), HasSubstr(" 10 "), HasSubstr("layouts"),
                                 HasSubstr("Near misses"), HasSubstr("t CO2e")));
}

// llama-1b's 17.3 GB take 35 ms each at Frontier's 500 GB/s; 100 B tokens are 381,470 steps.
TEST_F(PlanSearchCommand, CountsCheckpoints) {
  const std::string plan =
      "--model llama-1b --machine frontier --gpus 64 --batch 64 --length 4096 --tp 1 --pp 1 "
      "--zero 1 --tokens 100B --best 1 ";
  EXPECT_THAT(run(plan + "--checkpoint-every 1000 --emit run.yaml").out,
              HasSubstr("382 of them 13 s of the days"));
  EXPECT_EQ(parse_run_config(content_of("run.yaml"), "run.yaml").train.checkpoint_every, 1000);
  EXPECT_THAT(run(plan + "--checkpoint-every 0").out, Not(HasSubstr("of them")));
}

TEST_F(PlanSearchCommand, EmitsWhatTrainRuns) {
  const Outcome outcome =
      run("--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 --json --emit run.yaml "
          "--data text.txt --tp 2 --pp 2");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const json plan = json::parse(outcome.out);
  const RunConfig config = parse_run_config(content_of("run.yaml"), "run.yaml");
  EXPECT_EQ(config.layout.tp, 2);
  EXPECT_EQ(config.layout.pp, 2);
  EXPECT_EQ(config.batch.global, 64);
  const json& best = plan["best"][0];
  EXPECT_EQ(config.batch.micro, best["layout"]["micro"]);
  EXPECT_EQ(config.layout.zero, best["layout"]["zero"]);
  EXPECT_GT(best["memory_bytes"], 1e9);
  EXPECT_EQ(plan["best"].size(), 10u);
}

// A short run, planned and then trained on this processor.
TEST_F(PlanSearchCommand, TrainRunsIt) {
  std::ofstream corpus(directory_ / "corpus.txt");
  for (int line = 0; line < 400; ++line) corpus << "a line of text, number " << line << "\n";
  corpus.close();
  const Outcome planned =
      run("--model llama-tiny --machine laptop --gpus 1 --batch 4 --length 64 --precision fp32 "
          "--tokens 500 --emit run.yaml");
  EXPECT_EQ(planned.code, 0) << planned.error;
  const std::string command = "cd '" + directory_.path().string() +
                              "' && '" KINTSUGI_BINARY
                              "' train run.yaml --set device=cpu >train.txt 2>error.txt";
  EXPECT_EQ(std::system(command.c_str()), 0) << content_of("error.txt");
  EXPECT_TRUE(std::filesystem::exists(directory_ / "runs/llama-tiny/checkpoints/step-00000002"));
}

// What plan writes, train --dry-run says the same of.
TEST_F(PlanSearchCommand, DryRunOfWhatWasPlanned) {
  const Outcome planned =
      run("--model llama-8b --machine dgx-h100 --gpus 16 --batch 64 --emit run.yaml --explain 1");
  EXPECT_EQ(planned.code, 0) << planned.error;
  const std::string command = "cd '" + directory_.path().string() +
                              "' && '" KINTSUGI_BINARY
                              "' train --dry-run --machine dgx-h100 run.yaml >dry.txt 2>error.txt";
  EXPECT_EQ(std::system(command.c_str()), 0) << content_of("error.txt");
  const std::string dry = content_of("dry.txt");
  EXPECT_THAT(dry, AllOf(HasSubstr("It fits"), HasSubstr("days")));
  const std::string table = planned.out.substr(0, planned.out.find("tokens/s/GPU"));
  EXPECT_EQ(dry.substr(0, table.size()), table);
  const std::string small = "cd '" + directory_.path().string() +
                            "' && '" KINTSUGI_BINARY
                            "' train --dry-run --machine laptop --gpus 1 --set layout.dp=1 --set "
                            "layout.tp=1 --set layout.pp=1 --set layout.zero=0 --set "
                            "layout.sequence_parallel=false --set layout.shard_group=0 run.yaml "
                            ">dry.txt 2>error.txt";
  const int status = std::system(small.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(content_of("error.txt"), HasSubstr("it does not fit"));
}

TEST_F(PlanSearchCommand, ExplainsOne) {
  const Outcome outcome =
      run("--model llama-8b --machine dgx-h100 --gpus 16 --batch 64 --pp 4 --explain 1");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("gradients"), HasSubstr("pipeline bubble"),
                                 HasSubstr("rank 0 |"), HasSubstr("optimizer")));
}

TEST_F(PlanSearchCommand, ScalesAndDraws) {
  const Outcome outcome =
      run("--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 --scaling strong --svg s.svg");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, HasSubstr("efficiency"));
  EXPECT_THAT(content_of("s.svg"), StartsWith("<svg "));
}

TEST_F(PlanSearchCommand, CalculatesAndLists) {
  EXPECT_THAT(
      run("--parameters 30B --tokens 450B --gpus 88 --machine snellius-h100 --mfu 0.317").out,
      AllOf(HasSubstr("34.0 days"), HasSubstr("13.9 t CO2e for the GPUs")));
  EXPECT_THAT(run("--machines").out, AllOf(HasSubstr("frontier"), HasSubstr("9408 nodes x 8")));
}

TEST_F(PlanSearchCommand, NonsenseGetsAnAnswer) {
  EXPECT_THAT(mistake("--model llama-8b --gpus 8"), HasSubstr("--machine"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100"), HasSubstr("--gpus"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 0"), HasSubstr("1 or more"));
  EXPECT_THAT(mistake("--model llama-9b --machine dgx-h100 --gpus 8"), HasSubstr("no preset"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h10 --gpus 8"), HasSubstr("dgx-h100"));
  EXPECT_THAT(mistake("--model llama-8b --machine h200 --gpus 8"), HasSubstr("has 1"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 8 --batch 0"),
              HasSubstr("--batch"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 37 --batch 8"),
              HasSubstr("divisors"));
  EXPECT_THAT(mistake("--model llama-70b --machine dgx-h100 --gpus 8 --batch 64"),
              AllOf(HasSubstr("GPUs would do"), HasSubstr("the least that one needs")));
  EXPECT_THAT(mistake("--model llama-405b --machine h200 --gpus 1"), HasSubstr("no part of"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 8 --rank-by cost"),
              HasSubstr("eur_per_gpu_hour"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 8 --rank-by luck"),
              HasSubstr("energy"));
  EXPECT_THAT(mistake("--model gpt-175b --machine frontier --gpus 64 --length 4096"),
              HasSubstr("2048 positions"));
  std::ofstream(directory_ / "slow.yaml") << "name: x\nnodes: 2\ngpu:\n  bf16_tflops: 1\n"
                                             "  memory_gb: 1\n  memory_gb_s: 1\n";
  EXPECT_THAT(mistake("--model llama-8b --machine slow.yaml --gpus 2"),
              HasSubstr("network.gb_s is missing"));
  EXPECT_THAT(mistake("--evaluate nowhere.csv"), HasSubstr("nowhere.csv"));
  std::ofstream(directory_ / "odd.csv") << "layers\n1\n";
  EXPECT_THAT(mistake("--evaluate odd.csv"), HasSubstr("layouts.csv or memory.csv"));
}

// Memory has a schema of its own; the file says which it is.
TEST_F(PlanSearchCommand, EvaluatesMemory) {
  std::ofstream(directory_ / "memory.csv")
      << "dataset,num_layers,hidden_size,num_attention_heads,seq_length,tokenizer,"
         "global_batch_size,bf16,fp8_format,gpus_total,mem_max_allocated_bytes\n"
         "a,12,512,8,1024,gpt2-bpe,32,True,,8,1000000000\n"
         "a,12,512,8,1024,gpt2-bpe,32,True,e4m3,8,1000000000\n";
  const Outcome table = run("--evaluate memory.csv --accuracy");
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, AllOf(HasSubstr("a                                  2           1 |"),
                               HasSubstr("     1  FP8\n")));
  EXPECT_EQ(run("--evaluate memory.csv --output out.csv").code, 0);
  EXPECT_THAT(content_of("out.csv"),
              AllOf(HasSubstr("mem_max_allocated_bytes,predicted_bytes,predicted_why\n"),
                    HasSubstr(",FP8\n")));
}

}  // namespace
}  // namespace kintsugi
