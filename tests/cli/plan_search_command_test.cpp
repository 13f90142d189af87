// kintsugi plan --model as a user runs it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/program_test.h"
#include "train/config/config.h"

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
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("tok/s/GPU"), HasSubstr("\n 10= "), HasSubstr("layouts"),
                                 HasSubstr("Near misses"), HasSubstr("t CO2e")));
}

TEST_F(PlanSearchCommand, PrintsIntervals) {
  const std::string plan = "--model llama-1b --machine jupiter --gpus 8 --batch 256 --best 4 ";
  const json found = json::parse(run(plan + "--tokens 1B --json").out);
  EXPECT_EQ(found["risk"], false);
  for (const json& one : found["best"]) {
    const double step = one["step_time_s"], factor = one["interval"]["factor"];
    EXPECT_GT(factor, 1.05);
    EXPECT_NEAR(one["interval"]["step_time_low_s"].get<double>(), step / factor, 1e-9);
    EXPECT_NEAR(one["interval"]["step_time_high_s"].get<double>(), step * factor, 1e-9);
    EXPECT_EQ(one["interval"]["efficiency_assumed"], true);
  }
  EXPECT_EQ(found["best"][0]["interval"]["equals_best"], true);
  EXPECT_EQ(found["best"][0]["interval"]["kind"], "several nodes");
  EXPECT_EQ(json::parse(run(plan + "--risk --json").out)["risk"], true);
  EXPECT_THAT(run(plan + "--risk").out,
              AllOf(HasSubstr(" ordered by the upper end."), HasSubstr("efficiency of GH200")));
  EXPECT_THAT(run(plan + "--explain 1 --tokens 1B").out,
              AllOf(HasSubstr("Nine of ten times "), HasSubstr("(± 10 %: several nodes, from "),
                    HasSubstr("days, energy and cost ± 10 % from the step time alone")));
}

// The table and the explained layout, each as it is printed alone.
TEST_F(PlanSearchCommand, BestAndExplainGoTogether) {
  const std::string plan = "--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 ";
  const Outcome both = run(plan + "--best 3 --explain 2");
  EXPECT_EQ(both.code, 0) << both.error;
  const auto first_line = [](const std::string& text, std::size_t from) {
    return text.substr(from, text.find('\n', from) - from);
  };
  const std::string explained = first_line(run(plan + "--explain 2").out, 0);
  const std::string table = run(plan + "--best 3").out;
  const std::size_t third = table.find("\n  3") + 1;
  EXPECT_THAT(both.out, AllOf(StartsWith(first_line(table, 0)), HasSubstr(first_line(table, third)),
                              HasSubstr("\nLayout 2: " + explained + "\n"),
                              HasSubstr("Memory per rank"), Not(HasSubstr("\n  4"))));
}

// A checkpoint of llama-1b has 17.3 GB, 0.25 s at a tenth of the network of eight nodes; 100B
// tokens are 381,470 steps.
TEST_F(PlanSearchCommand, CountsCheckpoints) {
  const std::string plan =
      "--model llama-1b --machine frontier --gpus 64 --batch 64 --length 4096 --tp 1 --pp 1 "
      "--zero 1 --tokens 100B --best 1 ";
  EXPECT_THAT(
      run(plan + "--checkpoint-every 1000 --emit run.yaml").out,
      HasSubstr(
          "takes 0.25 s at an assumed 70.4 GB/s (382 checkpoints: 1 min 34 s, included above)"));
  EXPECT_EQ(parse_run_config(content_of("run.yaml"), "run.yaml").train.checkpoint_every, 1000);
  EXPECT_THAT(run(plan + "--checkpoint-every 0").out, Not(HasSubstr(" checkpoints: ")));
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
  EXPECT_EQ(config.layout.micro_batch, best["layout"]["micro"]);
  EXPECT_EQ(config.layout.zero, best["layout"]["zero"]);
  EXPECT_GT(best["memory_bytes"], 1e9);
  EXPECT_EQ(plan["best"].size(), 10u);
}

// A short run is planned and then trained on the CPU.
TEST_F(PlanSearchCommand, TrainRunsIt) {
  std::ofstream corpus(directory_ / "corpus.txt");
  for (int line = 0; line < 400; ++line) corpus << "a line of text, number " << line << "\n";
  corpus.close();
  const Outcome planned =
      run("--model llama-tiny --machine laptop --gpus 1 --batch 4 --length 64 --precision fp32 "
          "--tokens 500 --emit run.yaml");
  EXPECT_EQ(planned.code, 0) << planned.error;
  const Outcome trained = run_kintsugi("train run.yaml --set device=cpu");
  EXPECT_EQ(trained.code, 0) << trained.error;
  EXPECT_TRUE(std::filesystem::exists(directory_ / "runs/llama-tiny/checkpoints/step-00000002"));
}

// train --dry-run of an emitted configuration prints the same numbers as plan.
TEST_F(PlanSearchCommand, DryRunOfWhatWasPlanned) {
  const Outcome planned =
      run("--model llama-8b --machine dgx-h100 --gpus 16 --batch 64 --emit run.yaml --explain 1");
  EXPECT_EQ(planned.code, 0) << planned.error;
  const Outcome fits = run_kintsugi("train --dry-run --machine dgx-h100 run.yaml");
  EXPECT_EQ(fits.code, 0) << fits.error;
  const std::string& dry = fits.out;
  EXPECT_THAT(dry, AllOf(HasSubstr("It fits"), HasSubstr("GPU-hours")));
  const std::string table = planned.out.substr(0, planned.out.find("tokens/s/GPU"));
  EXPECT_EQ(dry.substr(0, table.size()), table);
  const Outcome small = run_kintsugi(
      "train --dry-run --machine laptop --gpus 1 --set layout.dp=1 --set layout.tp=1 --set "
      "layout.pp=1 --set layout.zero=0 --set layout.sequence_parallel=false --set "
      "layout.shard_group=0 run.yaml");
  EXPECT_EQ(small.code, 2);
  EXPECT_THAT(small.error, HasSubstr("it does not fit"));
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

TEST_F(PlanSearchCommand, TakesNodesInsteadOfGpus) {
  const std::string plan = "--model llama-1b --machine dgx-h100 --batch 64 --best 2 ";
  const Outcome nodes = run(plan + "--nodes 2");
  EXPECT_EQ(nodes.code, 0) << nodes.error;
  EXPECT_EQ(nodes.out, run(plan + "--gpus 16").out);
  EXPECT_THAT(mistake(plan + "--nodes 1001"), HasSubstr("--nodes 1001: DGX H100 (Eos) has 1000"));
  EXPECT_THAT(mistake(plan + "--nodes 0"), HasSubstr("--nodes 0: it must be 1 or more"));
  EXPECT_THAT(mistake(plan), HasSubstr("needs --gpus or --nodes"));
}

// 64 sequences, 2 of them at a time on each of 8 data ranks: 4 micro-batches.
TEST_F(PlanSearchCommand, ShowsBatchAndAccumulation) {
  const std::string plan =
      "--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 --tp 2 --pp 1 --micro 2 --best 1 ";
  const Outcome outcome = run(plan);
  EXPECT_THAT(outcome.out, testing::ContainsRegex("memory   batch  accum    step s"));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("GiB      64      4 "));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("accum: micro-batches per step"), HasSubstr("; sp: "),
                                 Not(HasSubstr("chunks: ")), Not(HasSubstr("offload-"))));
  EXPECT_EQ(json::parse(run(plan + "--json").out)["best"][0]["accumulation"], 4);
}

// Each row has the figures of the same run planned alone.
TEST_F(PlanSearchCommand, ScalingPricesTheRun) {
  const std::string plan =
      "--model llama-1b --machine dgx-h100 --batch 64 --tokens 10B --eur-per-gpu-hour 2 "
      "--node-mtbf 30d --save-time 20s ";
  const std::string scaling = plan + "--gpus 16 --scaling strong ";
  const Outcome table = run(scaling);
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, AllOf(HasSubstr("days       MWh        EUR  layout"),
                               HasSubstr("Days and MWh of nodes with PUE: of 10 B tokens"),
                               HasSubstr("On 16 GPUs: Failures: "), HasSubstr("GPU ±    "),
                               HasSubstr("all columns of the row except the efficiency.")));
  const json rows = json::parse(run(scaling + "--json").out)["rows"];
  ASSERT_EQ(rows.size(), 5u);
  for (const json& row : rows) {
    const json alone = json::parse(
        run(plan + "--json --best 1 --gpus " + std::to_string(row["gpus"].get<int>())).out);
    EXPECT_EQ(row["run"], alone["best"][0]["run"]);
    EXPECT_EQ(row["layout"], alone["best"][0]["layout"]);
    EXPECT_EQ(row["accumulation"], alone["best"][0]["accumulation"]);
    json interval = alone["best"][0]["interval"];
    interval.erase("equals_best");
    EXPECT_EQ(row["interval"], interval);
    const int percent = static_cast<int>(std::lround(100 * interval["factor"].get<double>())) - 100;
    EXPECT_THAT(table.out, HasSubstr(" " + std::to_string(percent) + "% "));
  }
  EXPECT_THAT(run("--model llama-1b --machine dgx-h100 --batch 64 --gpus 4 --scaling strong").out,
              Not(HasSubstr("MWh")));
}

// With failures, 100B tokens are saved as often as is best, and the configuration too.
TEST_F(PlanSearchCommand, PlansForFailures) {
  const std::string plan =
      "--model llama-1b --machine dgx-h100 --gpus 256 --batch 256 --length 4096 --best 1 "
      "--tokens 100B ";
  EXPECT_THAT(run(plan).out, Not(HasSubstr("Failures")));
  const std::string failing = plan + "--node-mtbf 40d --save-time 15s --repair-time 2d ";
  const Outcome outcome = run(failing + "--json --emit run.yaml");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const json one = json::parse(outcome.out)["best"][0]["run"];
  EXPECT_DOUBLE_EQ(one["failures"]["run_mtbf_s"].get<double>(), 40 * 86400 / 32.0);
  EXPECT_EQ(one["failures"]["spare_nodes"], 5) << "1.6 failures expected in 2 days";
  EXPECT_EQ(one["failures"]["spare_nodes_available"], 5);
  EXPECT_FALSE(one.contains("storage_gb_s")) << "the time of a checkpoint was given";
  const std::int64_t every = one["checkpoint_every"];
  EXPECT_EQ(one["failures"]["best_checkpoint_every"], every);
  EXPECT_EQ(parse_run_config(content_of("run.yaml"), "run.yaml").train.checkpoint_every, every);
  EXPECT_THAT(content_of("run.yaml"), HasSubstr("# Launch with --spare-nodes 5.\n"));
  EXPECT_THAT(
      run(failing).out,
      AllOf(HasSubstr("Failures: a node every 1 d 06 h"), HasSubstr("in 99 % of cases: 5.\n"),
            HasSubstr("Checkpoints every " + std::to_string(every) + " steps"),
            HasSubstr(" and takes 15 s by --save-time ("), Not(HasSubstr(" 0 GB/s"))));
  EXPECT_THAT(run(failing + "--checkpoint-every 100000").out,
              HasSubstr("100000 steps; " + std::to_string(every) + " would cost least."));
  EXPECT_THAT(mistake(failing + "--checkpoint-every 0"), HasSubstr("would begin the run again"));
  EXPECT_THAT(mistake(plan + "--node-mtbf 40d"), HasSubstr("give --save-time"));
  // Grand Teton has node.mtbf_h, and no storage_gb_s.
  const std::string known =
      "--model llama-1b --machine grand-teton-h100 --gpus 64 --best 1 "
      "--tokens 1B ";
  EXPECT_THAT(run(known).out, HasSubstr("not counted: the time of a checkpoint is not known"));
  EXPECT_THAT(run(known + "--save-time 9s").out, HasSubstr("Failures: a node every 32 d 23 h"));
  EXPECT_THAT(mistake(plan + "--node-mtbf 1h --save-time 10min"), HasSubstr("hardly progress"));
  EXPECT_THAT(mistake(plan + "--node-mtbf soon --save-time 1s"), HasSubstr("--node-mtbf"));
  EXPECT_THAT(mistake(plan + "--node-mtbf 250 --save-time 1s"),
              HasSubstr("'250' is less than an hour: for 250 days give 250d"));
  const Outcome off = run(known + "--save-time 9s --node-mtbf none");
  EXPECT_EQ(off.code, 0) << off.error;
  EXPECT_THAT(off.out, Not(HasSubstr("Failures")));
  // Times that nothing would use.
  for (const std::string time : {"--restart-time 9min", "--repair-time 9d"}) {
    EXPECT_THAT(mistake(plan + time), HasSubstr("has no effect without --node-mtbf: DGX H100"));
    EXPECT_THAT(mistake(known + "--node-mtbf none " + time),
                HasSubstr("has no effect with --node-mtbf none"));
    EXPECT_EQ(run(known + "--save-time 9s " + time).code, 0) << "the machine's mtbf_h";
  }
}

// Eos has 1000 nodes: 960 of them are at work, 40 are left, or none.
TEST_F(PlanSearchCommand, SaysHowManySpareNodesThereAre) {
  const std::string plan =
      "--model llama-1b --machine dgx-h100 --length 4096 --tp 1 --pp 1 --cp 1 --zero 1 --best 1 "
      "--tokens 1T --node-mtbf 40d --save-time 9s --repair-time 2d --batch ";
  EXPECT_THAT(run(plan + "7680 --nodes 960").out, HasSubstr("; the machine has only 40 more.\n"));
  const Outcome all = run(plan + "8000 --nodes 1000 --emit run.yaml");
  EXPECT_THAT(all.out, AllOf(HasSubstr("Spare nodes that suffice until repairs in 99 % of cases: "),
                             HasSubstr("; the machine has no more nodes.\n"),
                             HasSubstr(" of restarts: "), Not(HasSubstr("idle"))));
  EXPECT_THAT(content_of("run.yaml"), AllOf(HasSubstr("; the machine has no more nodes.\n"),
                                            Not(HasSubstr("# Launch with"))));
}

// On one GPU the state of llama-8b is in host memory; two and more do not need that.
TEST_F(PlanSearchCommand, SaysWhyEfficienciesAreAbove100Percent) {
  const std::string plan = "--model llama-8b --machine dgx-h100 --batch 16 --length 4096 ";
  EXPECT_THAT(run(plan + "--gpus 8 --scaling strong").out,
              HasSubstr("Efficiencies above 100 %: they are relative to 1 GPU, whose memory needs "
                        "offload"));
  EXPECT_THAT(run("--model llama-1b --machine dgx-h100 --batch 64 --gpus 4 --scaling strong").out,
              Not(HasSubstr("above 100 %")));
  EXPECT_THAT(mistake(plan + "--gpus 8 --tokens 1e30"), HasSubstr("'1e30' is too large"));
}

// The dry run names options of its own command only, and says what it does not count.
TEST_F(PlanSearchCommand, DryRunSaysWhatIsNotCounted) {
  const std::string plan = "--model olmoe-1b-7b --machine dgx-h100 --gpus 16 --best 1 --tokens 1B ";
  const Outcome planned = run(plan + "--node-mtbf 40d --save-time 9s --emit run.yaml");
  EXPECT_EQ(planned.code, 0) << planned.error;
  const Outcome dry = run_kintsugi("train --dry-run --machine dgx-h100 run.yaml");
  EXPECT_EQ(dry.code, 0) << dry.error;
  EXPECT_THAT(dry.out,
              AllOf(HasSubstr("Failures of nodes are not counted: DGX H100 (Eos) has no "
                              "node.mtbf_h (kintsugi plan --config counts them with --node-mtbf)."),
                    HasSubstr("1.5 times the mean (assumed; kintsugi plan --config has "
                              "--imbalance).")));
  const Outcome teton = run_kintsugi("train --dry-run --machine grand-teton-h100 run.yaml");
  EXPECT_THAT(teton.out, HasSubstr("the time of a checkpoint is not known (kintsugi plan --config "
                                   "counts them with --save-time)."));
}

// Dense models have no experts to place.
TEST_F(PlanSearchCommand, ExpertsOnlyWhereThereAreSome) {
  const std::string plan = "--model llama-1b --machine dgx-h100 --gpus 8 --batch 64 --best 1 ";
  EXPECT_THAT(mistake(plan + "--ep 1"), HasSubstr("--ep is for experts, and llama-1b has none"));
  const json dense = json::parse(run(plan + "--json").out)["best"][0]["layout"];
  EXPECT_FALSE(dense.contains("ep"));
  EXPECT_FALSE(dense.contains("dispatch"));
  const json experts =
      json::parse(run("--model olmoe-1b-7b --machine dgx-h100 --gpus 16 --best 1 --json").out);
  EXPECT_TRUE(experts["best"][0]["layout"].contains("dispatch"));
}

// Adam's state of llama-8b, 12 bytes per parameter, does not fit one GPU.
TEST_F(PlanSearchCommand, OffloadsIfNothingFitsWithout) {
  const std::string plan =
      "--model llama-8b --machine dgx-h100 --gpus 1 --batch 8 --length 4096 --best 1 ";
  const Outcome outcome = run(plan + "--json --emit run.yaml");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const json best = json::parse(outcome.out)["best"][0];
  EXPECT_EQ(best["offload"], json::parse(R"({"optimizer": true, "gradients": false})"));
  EXPECT_NEAR(best["host_memory_bytes"].get<double>(), 12.0 * 8030261248, 1e8);
  EXPECT_GT(best["offload_wait_s"], 1);
  const RunConfig config = parse_run_config(content_of("run.yaml"), "run.yaml");
  EXPECT_TRUE(config.offload.optimizer);
  EXPECT_FALSE(config.offload.gradients);
  EXPECT_EQ(config.offload.update, UpdateLocation::Device);
  EXPECT_THAT(run(plan).out, HasSubstr("offload-optimizer: its state is in host memory"));
  EXPECT_THAT(run(plan + "--explain 1").out,
              AllOf(HasSubstr("A rank offloads 89.7"), HasSubstr("copies of offloaded data")));
  // What was emitted is planned as it is: the same time, and the same memory on the host.
  const Outcome dry = run_kintsugi("train --dry-run --machine dgx-h100 run.yaml");
  EXPECT_EQ(dry.code, 0) << dry.error;
  EXPECT_THAT(dry.out, HasSubstr(fmt::format("A step takes {:.3f} s, {:.3f} s of it for copies",
                                             best["step_time_s"].get<double>(),
                                             best["offload_wait_s"].get<double>())));
  EXPECT_THAT(dry.out, AllOf(HasSubstr("\nOne step:\n"), HasSubstr("GPU-hours"),
                             HasSubstr("Nine of ten times"), HasSubstr("It fits: ")));
  EXPECT_THAT(run("--config run.yaml --machine dgx-h100 --gpus 8 --best 1").out,
              HasSubstr("offload-optimizer"))
      << "the configuration's offload stays, even if it is not needed";
  EXPECT_THAT(mistake(plan + "--offload none"), HasSubstr("with --offload none fits 1 GPU"));
  EXPECT_THAT(mistake(plan + "--offload some"), HasSubstr("--offload"));
  EXPECT_THAT(mistake(plan + "--offload gradients --schedule zb-h1"), HasSubstr("zb-h1"));
  EXPECT_THAT(mistake("--model llama-tiny --machine laptop --gpus 1 --offload all"),
              HasSubstr("has no node.host_link_gb_s"));
}

TEST_F(PlanSearchCommand, CalculatesAndLists) {
  EXPECT_THAT(
      run("calculate --parameters 30B --tokens 450B --gpus 88 --machine snellius-h100 --mfu 0.317")
          .out,
      AllOf(HasSubstr("34.0 days"), HasSubstr("13.8 t CO2e for the GPUs with PUE")));
  EXPECT_THAT(run("machines").out, AllOf(HasSubstr("frontier"), HasSubstr("9856 nodes x 8")));
}

TEST_F(PlanSearchCommand, NamesWhatTheMachineDoesNotSay) {
  directory_.write("bare.yaml",
                   "name: bare\nnodes: 1\n"
                   "gpu: {bf16_tflops: 312, memory_gb: 80, memory_gb_s: 2039, tdp_w: 400}\n"
                   "node: {gpus: 8, link_gb_s: 300}\n");
  const std::string unknown = "bare has no node.host_w and facility.pue";
  const Outcome calculus =
      run("calculate --parameters 1B --tokens 20B --gpus 8 --machine bare.yaml");
  EXPECT_THAT(calculus.out, AllOf(HasSubstr(" in GPUs"), HasSubstr(unknown),
                                  Not(HasSubstr("in nodes")), Not(HasSubstr(" with PUE"))));
  const std::string search =
      "--model llama-1b --machine bare.yaml --gpus 8 --batch 64 --tokens 1B --best 1";
  EXPECT_THAT(run(search).out, AllOf(HasSubstr(unknown), HasSubstr("energy of GPUs alone"),
                                     Not(HasSubstr("in nodes"))));
  const json plan = json::parse(run(search + " --json").out);
  EXPECT_TRUE(plan["best"][0]["run"]["node_mwh"].is_null());
  EXPECT_TRUE(plan["best"][0]["run"]["facility_mwh"].is_null());
  EXPECT_TRUE(plan["best"][0]["node_energy_j"].is_null());
  EXPECT_GT(plan["best"][0]["run"]["gpu_mwh"], 0);
}

TEST_F(PlanSearchCommand, SaysWhatIsAssumedOfExperts) {
  const std::string plan =
      "--model olmoe-1b-7b --machine dgx-h100 --gpus 8 --ep 8 --zero 1 --best 1 ";
  EXPECT_THAT(run(plan).out, AllOf(HasSubstr(" ep8"), HasSubstr("computes 1.5 times the mean")));
  EXPECT_THAT(run(plan + "--imbalance 1").out, HasSubstr("All experts are chosen alike"));
  EXPECT_EQ(json::parse(run(plan + "--imbalance 2 --json").out)["imbalance"], 2);
  EXPECT_THAT(mistake("--model olmoe-1b-7b --machine dgx-h100 --gpus 8 --ep 3"),
              HasSubstr("--ep 3 does not divide 64 experts"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 8 --imbalance 2"),
              HasSubstr("llama-8b has none"));
}

TEST_F(PlanSearchCommand, NonsenseGetsAnAnswer) {
  EXPECT_THAT(mistake("--model llama-8b --gpus 8"), HasSubstr("--machine"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100"), HasSubstr("--gpus"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 0"), HasSubstr("1 or more"));
  EXPECT_THAT(mistake("--model llama-9b --machine dgx-h100 --gpus 8"), HasSubstr("no preset"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h10 --gpus 8"), HasSubstr("dgx-h100"));
  EXPECT_THAT(mistake("--model llama-8b --machine nope --gpus 8"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(mistake("--model llama-8b --machine h200 --gpus 8"), HasSubstr("has 1"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 8 --batch 0"),
              HasSubstr("--batch"));
  EXPECT_THAT(mistake("--model llama-8b --machine dgx-h100 --gpus 37 --batch 8"),
              HasSubstr("divisors"));
  EXPECT_THAT(mistake("--model llama-70b --machine dgx-h100 --gpus 8 --batch 64 --offload none"),
              AllOf(HasSubstr("GPUs are enough"), HasSubstr("the smallest needs")));
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
}

// If a limit is the cause, the error names it and not the machine.
TEST_F(PlanSearchCommand, NamesTheImpossibleLimit) {
  const std::string plan = "--model llama-8b --machine snellius-h100 --gpus 64 ";
  for (const auto& [limits, why] :
       {std::pair("--tp 3", "--tp 3 does not divide 64 GPUs"),
        std::pair("--tp 64", "--tp 64 does not divide the model's 32 heads"),
        std::pair("--pp 64", "--pp 64: the model has 32 layers"),
        std::pair("--micro 7", "--micro 7 does not divide a batch of 512 sequences"),
        std::pair("--cp 32 --length 80", "--cp 32 needs sequences of a multiple of 32 tokens"),
        std::pair("--cp 32 --length 96 --context ring", "of a multiple of 64 tokens, not 96"),
        std::pair("--cp 64 --context ulysses", "does not fit 32 heads and 8 key-value heads"),
        std::pair("--tp 16 --pp 8", "--tp 16 --pp 8 together need a multiple of 128 GPUs, not 64"),
        std::pair("--tp 8 --pp 8 --zero 1",
                  "--zero 1 has nothing to shard: with --tp 8 --pp 8 there"),
        std::pair("--cp 1 --pp 2 --micro 17 --batch 34 --schedule interleaved --tp 16",
                  "has --tp 16 --cp 1 --pp 2 --micro 17 --schedule interleaved: without"),
        std::pair("--tp 0", "--tp"), std::pair("--cp -1", "--cp"), std::pair("--pp 0", "--pp"),
        std::pair("--micro 0", "--micro"), std::pair("--recompute some", "some"),
        std::pair("--schedule best", "zb-h1"), std::pair("--context star", "ring or ulysses")})
    EXPECT_THAT(mistake(plan + limits), HasSubstr(why));
  EXPECT_THAT(
      mistake(
          "--model gpt-175b --machine dgx-h100 --gpus 64 --pp 4 --tp 2 --zero 0 --offload none"),
      AllOf(HasSubstr("with --tp 2 --pp 4 --zero 0 --offload none fits 64 GPUs"),
            HasSubstr("; without --"), HasSubstr(" some fit"), Not(HasSubstr("this machine"))));
  EXPECT_EQ(run(plan + "--batch 448 --micro 7 --tp 16").code, 0);
}

// 4M tokens are 488 sequences, 7.6 for each of 64 GPUs. This is rounded to 8, so that micro-batches
// of 2, 4 and 8 divide it. A given batch is not changed.
TEST_F(PlanSearchCommand, DefaultBatch) {
  const std::string plan = "--model llama-1b --machine snellius-h100 --json --best 1 --gpus ";
  EXPECT_EQ(json::parse(run(plan + "64").out)["batch"], 512);
  EXPECT_EQ(json::parse(run(plan + "48").out)["batch"], 384);
  EXPECT_EQ(json::parse(run(plan + "64 --batch 448").out)["batch"], 448);
}

// --batch is the batch on --gpus; 25 cannot be halved.
TEST_F(PlanSearchCommand, WeakScalingKeepsTheBatch) {
  const Outcome outcome =
      run("--model llama-1b --machine dgx-h100 --gpus 64 --batch 100 --scaling weak");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\n     64     100 "), HasSubstr("\n     16      25 "),
                                 Not(HasSubstr("\n      8 ")), HasSubstr("number on 8 GPUs")));
}

TEST_F(PlanSearchCommand, JsonContainsTheRequest) {
  const Outcome outcome =
      run("--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 --pp 2 --best 2 --tokens 1B "
          "--rank-by energy --explain 2 --json");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const json plan = json::parse(outcome.out);
  EXPECT_EQ(plan["model"], "llama-1b");
  EXPECT_EQ(plan["gpus"], 16);
  EXPECT_EQ(plan["precision"], "bf16");
  EXPECT_EQ(plan["rank_by"], "energy");
  // 14 bytes for each of 1,235,814,400 parameters.
  EXPECT_EQ(plan["checkpoint_bytes"], 14 * std::int64_t{1235814400});
  const json& best = plan["best"][1];
  EXPECT_TRUE(best["memory_bytes"].is_number_integer());
  EXPECT_TRUE(best["run"]["steps"].is_number_integer());
  ASSERT_EQ(best["stage_memory_bytes"].size(), 2u);
  std::int64_t fullest = 0;
  for (const json& stage : best["stage_memory_bytes"]) {
    std::int64_t sum = 0;
    for (const auto& [region, bytes] : stage.items())
      if (region != "all") sum += bytes.get<std::int64_t>();
    EXPECT_EQ(stage["all"], sum);
    fullest = std::max(fullest, sum);
  }
  EXPECT_EQ(best["memory_bytes"].get<double>(),
            static_cast<double>(fullest) + 1e9 * plan["own_gb"].get<double>());
  json explained = plan["explained"];
  EXPECT_EQ(explained["place"], 2);
  explained.erase("place");
  EXPECT_EQ(explained, best);
}

// fp8 is bf16 with train.fp8; the MFU stays relative to the peak of bf16.
TEST_F(PlanSearchCommand, PlansInFp8) {
  const std::string plan = "--model llama-8b --machine dgx-h100 --gpus 8 --batch 64 --best 1 ";
  const Outcome table = run(plan + "--precision fp8 --emit run.yaml");
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.out, AllOf(HasSubstr("that of bf16, 989.4 TFLOP/s (fp8: 1979)"),
                               HasSubstr("fp8 {recipe: rowwise}")));
  EXPECT_THAT(content_of("run.yaml"), HasSubstr("precision: bf16, fp8: {recipe: rowwise}, "));
  const json bf16 = json::parse(run(plan + "--json").out),
             fp8 = json::parse(run(plan + "--precision fp8 --json").out);
  EXPECT_FALSE(bf16.contains("fp8"));
  EXPECT_EQ(fp8["precision"], "fp8");
  EXPECT_EQ(fp8["fp8"], "{recipe: rowwise}");
  EXPECT_EQ(fp8["mfu_peak_tflops"], 989.4);
  const auto speed = [](const json& one) {
    return one["best"][0]["tokens_per_s_per_gpu"].get<double>();
  };
  EXPECT_GT(speed(fp8) / speed(bf16), 1.15);
  EXPECT_LT(speed(fp8) / speed(bf16), 1.8);
  const Outcome dry = run_kintsugi("train --dry-run --machine dgx-h100 run.yaml");
  EXPECT_EQ(dry.code, 0) << dry.error;
  EXPECT_THAT(dry.out, HasSubstr("tokens/s/GPU in fp8 {recipe: rowwise}"));
}

// Paths are quoted, and missing inputs are marked FILL IN.
TEST_F(PlanSearchCommand, EmitsPathsAndPlaceholders) {
  const std::string plan =
      "--model llama-1b --machine dgx-h100 --gpus 8 --batch 64 --overwrite --emit run.yaml ";
  EXPECT_EQ(run(plan).code, 0);
  EXPECT_THAT(content_of("run.yaml"),
              AllOf(HasSubstr("# FILL IN: corpus.txt"), HasSubstr("# FILL IN: the tokenizer"),
                    HasSubstr("128256"), HasSubstr("# FILL IN train.steps")));
  const std::string path = "a {b}: [c], #d \"e\" 'f' \\g";
  const auto shell = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4)
      text.replace(at, 1, "'\\''");
    return "'" + text + "'";
  };
  const Outcome outcome =
      run(plan + "--tokens 1B --data " + shell(path) + " --tokenizer " + shell("t: " + path));
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(content_of("run.yaml"), Not(HasSubstr("FILL IN")));
  const RunConfig config = parse_run_config(content_of("run.yaml"), "run.yaml");
  EXPECT_EQ(config.data.train.front().path, path);
  EXPECT_EQ(config.data.tokenizer, "t: " + path);
}

// 8 GPUs at 2 EUR are 16 EUR per hour; for a fixed number of GPUs the order is that of time.
TEST_F(PlanSearchCommand, PriceOfTheUser) {
  const std::string plan =
      "--model llama-1b --machine dgx-h100 --gpus 8 --batch 64 --best 3 --tokens 10B --json ";
  const Outcome outcome = run(plan + "--rank-by cost --eur-per-gpu-hour 2");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const json priced = json::parse(outcome.out), timed = json::parse(run(plan).out);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(priced["best"][i]["layout"], timed["best"][i]["layout"]);
  const json& whole = priced["best"][0]["run"];
  EXPECT_NEAR(whole["euro"].get<double>(), 16 * 24 * whole["days"].get<double>(), 1e-9);
}

TEST_F(PlanSearchCommand, SmallRunsHaveSmallUnits) {
  const Outcome outcome =
      run("--model llama-tiny --machine laptop --gpus 1 --batch 4 --length 64 --precision fp32 "
          "--tokens 256");
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr(": 1 step, "), HasSubstr(" kJ in GPUs"), Not(HasSubstr(" 0.0 "))));
}

TEST_F(PlanSearchCommand, DrawsWhatItExplains) {
  const std::string plan =
      "--model llama-1b --machine dgx-h100 --gpus 8 --batch 64 --explain 1 --overwrite --svg "
      "x.svg ";
  EXPECT_EQ(run(plan + "--pp 4").code, 0);
  EXPECT_THAT(content_of("x.svg"), StartsWith("<svg "));
  EXPECT_THAT(mistake(plan + "--pp 1"), HasSubstr("no pipeline"));
}

TEST_F(PlanSearchCommand, SaysMoreEnergyWhereThatIsTheOrder) {
  const std::string plan = "--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 ";
  EXPECT_THAT(run(plan + "--rank-by energy").out,
              AllOf(HasSubstr(" % more energy: "), Not(HasSubstr(" % slower"))));
  EXPECT_THAT(run(plan).out, AllOf(HasSubstr(" % slower: "), Not(HasSubstr("more energy"))));
}

TEST_F(PlanSearchCommand, SaysWhichEnergyIsTheOrder) {
  directory_.write("bare.yaml",
                   "name: bare\nnodes: 1\n"
                   "gpu: {bf16_tflops: 312, memory_gb: 80, memory_gb_s: 2039, tdp_w: 400}\n"
                   "node: {gpus: 8, link_gb_s: 300}\n");
  const std::string plan = "--model llama-1b --gpus 8 --batch 64 --best 1 --rank-by energy ";
  EXPECT_THAT(run(plan + "--machine bare.yaml").out,
              HasSubstr("energy of GPUs alone (bare has no node.host_w), and the layouts are "
                        "ordered by it"));
  EXPECT_THAT(run(plan + "--machine dgx-h100").out,
              HasSubstr("energy of nodes without PUE, and the layouts are ordered by it"));
  EXPECT_EQ(json::parse(run(plan + "--machine bare.yaml --json").out)["energy_of"], "GPUs");
}

// LUMI: hydropower by contract, Finland's grid otherwise.
TEST_F(PlanSearchCommand, PrintsCo2ByGridAndByContract) {
  const std::string plan = "--model llama-1b --machine lumi-g --gpus 16 --batch 64 --best 1 ";
  EXPECT_THAT(run(plan + "--tokens 100B").out,
              AllOf(HasSubstr(" CO2e location-based, 0 kg market-based"), HasSubstr(" with PUE")));
  const json one = json::parse(run(plan + "--tokens 100B --json").out)["best"][0]["run"];
  EXPECT_EQ(one["tonnes_co2e_market"], 0.0);
  EXPECT_NEAR(one["tonnes_co2e"].get<double>(), one["facility_mwh"].get<double>() * 0.0792, 1e-9);
  EXPECT_THAT(run("calculate --parameters 7B --tokens 1T --gpus 64 --machine lumi-g --mfu 0.3").out,
              HasSubstr("0 kg market-based for the nodes with PUE"));
}

}  // namespace
}  // namespace kintsugi
