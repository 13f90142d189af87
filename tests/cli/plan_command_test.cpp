// kintsugi plan as a user runs it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "support/program_test.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

using PlanCommand = PlanCommandTest;

// Each stage is planned with its own length and batch. The sum of the days is that of the stages.
TEST_F(PlanCommand, PlansTheStagesOfARun) {
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: llama-1b}\n"
                   "data: {train: [{path: corpus.txt}], sequence_length: 4096}\n"
                   "batch: {global: 64, micro: 1}\noptimizer: {warmup_steps: 0}\n"
                   "train: {precision: bf16, checkpoint_every: 0}\n"
                   "stages:\n"
                   "  - {name: short, tokens: 10B}\n"
                   "  - {name: long, tokens: 1B, sequence_length: 16384, batch: {global: 16}}\n");
  const std::string on = " --machine dgx-h100 --gpus 8 --best 1";
  const Outcome outcome = run("--config run.yaml" + on);
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  // 10B / (64 x 4096) and 1B / (16 x 16384) steps, rounded up.
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("stage 1 of 2 (short): 64 sequences of 4096 tokens per step"),
                    HasSubstr("stage 2 of 2 (long): 16 sequences of 16384 tokens per step"),
                    HasSubstr("38147 steps, "), HasSubstr("3815 steps, "),
                    HasSubstr("All stages, each with its first layout: 11 B tokens, 41962 steps"),
                    ContainsRegex("All stages.*; days, energy and cost ± [0-9]+ % from the step")));
  EXPECT_THAT(mistake("--config run.yaml --gpus 8"), HasSubstr("--config needs --machine"));
  EXPECT_THAT(mistake("--config run.yaml --length 8" + on), HasSubstr("--length has no effect"));
  EXPECT_THAT(mistake("tune run.yaml --machine dgx-h100 --gpus 8"), HasSubstr("it has stages"));
}

TEST_F(PlanCommand, DrawsAndSums) {
  const Outcome outcome = run("schedule 1f1b --stages 4 --micro-batches 8 --svg out.svg");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  // 3 (8 + 3) long, of which 3 / (8 + 3) is bubble.
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("rank 3 |......F0B0--F1B1--"), HasSubstr("33 forwards"),
                                 HasSubstr("bubble 27.3 %"), HasSubstr("per rank 4 3 2 1 ")));
  EXPECT_THAT(content_of("out.svg"), AllOf(StartsWith("<svg "), testing::EndsWith("</svg>\n")));
}

// Two chunks halve the bubble of 9 forwards and keep activations of (warm-up + 1) / 2
// micro-batches.
TEST_F(PlanCommand, InterleavedInUnitsOfAStage) {
  const Outcome outcome =
      run("schedule interleaved --stages 4 --micro-batches 8 --chunks 2 --json");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  const json plan = json::parse(outcome.out);
  EXPECT_DOUBLE_EQ(plan["makespan"].get<double>(), 24 + 4.5);
  EXPECT_NEAR(plan["bubble"].get<double>(), 3.0 / (2 * 8 + 3), 1e-12);
  EXPECT_DOUBLE_EQ(plan["ranks"][0]["peak_activations"].get<double>(), (2 * 3 + 4 + 1) / 2.0);
  EXPECT_DOUBLE_EQ(plan["ranks"][3]["idle"].get<double>(), 4.5);
  const json& first = plan["ranks"][1]["actions"][0];
  EXPECT_EQ(first["kind"], "receive_activation");
  EXPECT_EQ(first["chunk"], 0);
}

// With a backward as long as a forward: 2 (4 + 1) long.
TEST_F(PlanCommand, BackwardRatio) {
  const Outcome outcome = run("schedule --stages 2 --micro-batches 4 --backward-ratio 1 --json");
  EXPECT_DOUBLE_EQ(json::parse(outcome.out)["makespan"].get<double>(), 10);
}

TEST_F(PlanCommand, Help) {
  const Outcome outcome = run("--help");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("Examples:\n  kintsugi plan "), HasSubstr("zb-h1"),
                                 HasSubstr("calculate"), HasSubstr("machines")));
  for (const char* command : {"schedule", "calculate", "tune", "machines"})
    EXPECT_THAT(run(std::string(command) + " --help").out,
                HasSubstr(std::string("kintsugi plan ") + command));
}

// Options that a search does not use are refused: ignoring them would mislead the user.
TEST_F(PlanCommand, RefusesWhatHasNoEffect) {
  for (const auto& [arguments, name, task] :
       {std::tuple("--model gpt2-124m --scaling weak --emit x.yaml", "--emit", "--scaling"),
        std::tuple("--model gpt2-124m --nodes 1 --gpus 8", "--gpus", "--nodes"),
        std::tuple("--model gpt2-124m --scaling weak --explain 1", "--explain", "--scaling"),
        std::tuple("--config run.yaml --model gpt2-124m", "--model", "--config"),
        std::tuple("--config run.yaml --scaling weak", "--config", "--scaling")})
    EXPECT_THAT(mistake(arguments),
                HasSubstr(std::string(name) + " has no effect with " + task + ": "));
}

TEST_F(PlanCommand, CommandsTakeTheirOwnOptionsOnly) {
  for (const auto& [command, option] :
       {std::pair("machines", "--gpus"),
        {"tune run.yaml --machine h200 --gpus 1", "--tokens"},
        {"tune run.yaml --machine h200 --gpus 1", "--json"},
        {"calculate --parameters 1B --tokens 1T --gpus 8", "--batch"},
        {"calculate --parameters 1B", "--model"},
        {"calculate --days 3 --tokens 1T", "--explain"},
        {"schedule --stages 4 --micro-batches 8", "--gpus"}})
    EXPECT_THAT(mistake(fmt::format("{} {} 4", command, option)),
                HasSubstr(fmt::format("has no option '{}'", option)));
  EXPECT_THAT(mistake(""), HasSubstr("give --model or --config, or a command"));
}

// Each was an option that selected a task.
TEST_F(PlanCommand, OldSpellingsGetTheNewOne) {
  for (const auto& [old, now] :
       {std::pair("--machines", "plan --machines is now kintsugi plan machines\n"),
        {"--tune run.yaml --machine h200 --gpus 1",
         "plan --tune is now kintsugi plan tune CONFIG\n"},
        {"--machine h200 --gpus 1 --tune=run.yaml",
         "plan --tune is now kintsugi plan tune CONFIG\n"},
        {"--evaluate rows.csv --accuracy",
         "plan --evaluate is now plan_accuracy, another program (make plan-accuracy)\n"},
        {"evaluate rows.csv --accuracy",
         "plan evaluate is now plan_accuracy, another program (make plan-accuracy)\n"},
        {"--parameters 1B --tokens 1T --gpus 8",
         "plan --parameters is now kintsugi plan calculate --parameters\n"},
        {"--tokens 1T --days 3", "plan --days is now kintsugi plan calculate --days\n"},
        {"--schedule 1f1b --stages 4 --micro-batches 8",
         "plan --stages is now kintsugi plan schedule --stages\n"},
        {"--model gpt2-124m --micro-batches 8",
         "plan --micro-batches is now kintsugi plan schedule --micro-batches\n"}})
    EXPECT_THAT(mistake(old), testing::EndsWith(now));
}

TEST_F(PlanCommand, RefusesWhatNeedsAnother) {
  for (const auto& [option, other] :
       {std::pair("--svg x.svg", "--scaling or --explain"), std::pair("--data x", "--emit"),
        std::pair("--tokenizer x", "--emit"),
        std::pair("--checkpoint-every 9", "--tokens or --emit"),
        std::pair("--node-mtbf 9d", "--tokens or --config"),
        std::pair("--save-time 9s", "--tokens or --config"),
        std::pair("--restart-time 9s", "--tokens or --config"),
        std::pair("--repair-time 9d", "--tokens or --config"),
        std::pair("--eur-per-gpu-hour 2", "--tokens, --scaling or --rank-by cost")})
    EXPECT_THAT(mistake("--model gpt2-124m --machine h200 --gpus 1 " + std::string(option)),
                HasSubstr(std::string(" has no effect without ") + other));
}

// Checked before the search; the error has the given path.
TEST_F(PlanCommand, PathsThatCannotBeWritten) {
  const std::string search = "--model gpt2-124m --machine h200 --gpus 1 ";
  for (const std::string& arguments :
       {search + "--emit", search + "--explain 1 --svg", search + "--scaling strong --svg"}) {
    EXPECT_THAT(mistake(arguments + " nowhere/x"), HasSubstr("there is no directory nowhere\n"));
    EXPECT_THAT(mistake(arguments + " ."), HasSubstr(" . is a directory: name a file\n"));
  }
}

// By size, not by spelling: llama-1b, -3b and -8b differ by one letter.
TEST_F(PlanCommand, NamesThePresetNearestInSize) {
  EXPECT_THAT(mistake("--model llama-6b --machine h200 --gpus 1"),
              HasSubstr("did you mean 'llama-8b'?"));
  EXPECT_THAT(mistake("--model llama-100b --machine h200 --gpus 1"),
              HasSubstr("did you mean 'llama-70b'?"));
}

TEST_F(PlanCommand, MistakesAreNamed) {
  EXPECT_THAT(mistake("schedule fastest --stages 4 --micro-batches 8"), HasSubstr("zb-h1"));
  EXPECT_THAT(mistake("schedule interleaved --chunks 2 --stages 4 --micro-batches 9"),
              HasSubstr("8 and 12"));
  EXPECT_THAT(mistake("schedule 1f1b --chunks 2 --stages 4 --micro-batches 8"),
              HasSubstr("interleaved"));
  EXPECT_THAT(mistake("schedule --stages 0 --micro-batches 8"), HasSubstr("stages"));
  EXPECT_THAT(mistake("schedule --stages 4"), HasSubstr("--micro-batches"));
  EXPECT_THAT(mistake("schedule --stages four --micro-batches 8"), HasSubstr("--stages"));
  EXPECT_THAT(mistake("schedule --stages 4 --micro-batches 99999999999"),
              HasSubstr("--micro-batches"));
  EXPECT_THAT(mistake("schedule --stages 4 --micro-batches 1000000000"), HasSubstr("too large"));
  EXPECT_THAT(mistake("schedule --chunks 0 --stages 4 --micro-batches 8"),
              HasSubstr("chunks is 0"));
  for (const char* ratio : {"0", "-1", "nan", "inf", "1e300"})
    EXPECT_THAT(
        mistake("schedule --stages 4 --micro-batches 8 --backward-ratio " + std::string(ratio)),
        HasSubstr("--backward-ratio"));
  EXPECT_THAT(mistake("schedule --stages 4 --micro-batches 8 --svg nowhere/out.svg"),
              HasSubstr("nowhere"));
  EXPECT_THAT(mistake("schedule --stages 4 --micro-batches 8 --svg ."), HasSubstr("directory"));
}

}  // namespace
}  // namespace kintsugi
