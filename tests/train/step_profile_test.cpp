#include "train/step_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "backend/traced_backend.h"
#include "report/profile/analysis.h"
#include "report/profile/profile_file.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "support/trace_events.h"
#include "train/run_history.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(ProfileRequest, HasStepsRanksAndAFile) {
  const ProfileRequest all = parse_profile_request("steps=20-25,ranks=2-7,file=a,b.json");
  EXPECT_EQ(all.first_step, 20);
  EXPECT_EQ(all.last_step, 25);
  EXPECT_EQ(all.first_rank, 2);
  EXPECT_EQ(all.last_rank, 7);
  EXPECT_EQ(all.file, "a,b.json");
  const ProfileRequest one = parse_profile_request("ranks=3,steps=7");
  EXPECT_EQ(one.first_step, 7);
  EXPECT_EQ(one.last_step, 7);
  EXPECT_EQ(one.first_rank, 3);
  EXPECT_EQ(one.last_rank, 3);
  const ProfileRequest none = parse_profile_request("");
  EXPECT_FALSE(none.given_steps());
  EXPECT_TRUE(none.file.empty());
  const ProfileRequest later = parse_profile_request("on-request,ranks=0-3");
  EXPECT_TRUE(later.on_request);
  EXPECT_EQ(later.last_rank, 3);
}

TEST(ProfileRequest, MistakesAreRefused) {
  for (const char* steps : {"", "-", "3-", "-4", "4-3", "0-2", "0", "a-b", "3-4-5", "3 - 4", "1.5",
                            "3-99999999999999999999", "1-101"})
    EXPECT_THROW(parse_profile_request(std::string("steps=") + steps), UserError) << steps;
  for (const char* bad :
       {"run.yaml", "3-4", "steps", "steps=3,", ",steps=3", "steps=3,steps=4", "ranks=", "ranks=-1",
        "ranks=0-256", "ranks=4-3", "file=", "Steps=3", "steps=3 ranks=1", "ranks=0-99999999999",
        "on-request=1", "on-request,on-request", "on-request,steps=3", "on-request,file=a.json"})
    EXPECT_THROW(parse_profile_request(bad), UserError) << bad;
}

// Ten thousand ranks do not send their spans to one.
TEST(ProfileRequest, AtMostSixteenRanksRecordByDefault) {
  const auto recorded = [](const ProfileRequest& request, int ranks) {
    int count = 0;
    for (int rank = 0; rank < ranks; ++rank) count += request.records(rank, ranks) ? 1 : 0;
    return count;
  };
  EXPECT_EQ(recorded({}, 5), 5);
  EXPECT_EQ(recorded({}, 10000), 16);
  EXPECT_EQ(recorded(parse_profile_request("ranks=8-39"), 10000), 32);
  EXPECT_EQ(recorded(parse_profile_request("ranks=8-39"), 10), 2);
}

TEST(ProfileRequest, TheFileMustBeWritable) {
  const TemporaryDirectory directory;
  EXPECT_NO_THROW(check_profile_file({.file = directory / "new.json"}));
  EXPECT_NO_THROW(check_profile_file({.file = "new.json"}));
  EXPECT_THROW(check_profile_file({.file = directory / "none" / "new.json"}), UserError);
  EXPECT_THROW(check_profile_file({.file = directory.path()}), UserError);
  std::ofstream(directory / "file") << "x";
  EXPECT_THROW(check_profile_file({.file = directory / "file" / "new.json"}), UserError);
}

class ProfiledRun : public testing::Test {
 protected:
  ProfiledRun() { std::ofstream(directory_ / "corpus.txt") << small_corpus(300); }
  // Three micro-batches of two sequences in every step.
  std::string run(const std::string& name, const std::string& request) {
    const RunConfig config = parse_run_config(
        small_config((directory_ / "corpus.txt").string(), (directory_ / name).string(),
                     "steps: 4, eval_every: 0, checkpoint_every: 0, precision: fp64"),
        "test.yaml");
    Trace trace;
    const auto backend = make_traced_backend(make_cpu_backend(1), trace);
    const Groups groups = single_rank_groups(*backend);
    Trainer trainer(*backend, config, groups);
    StepProfile profile(trace, parse_profile_request(request));
    trainer.profile_with(profile);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    trainer.run(ResumeMode::Auto);
    profile.report();
    return testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  }
  json file(const char* name) const {
    std::ifstream file(directory_ / "run" / "profiles" / name);
    return json::parse(file);
  }
  TemporaryDirectory directory_;
};

TEST_F(ProfiledRun, ContainsTheOperationsOfItsSteps) {
  const std::string output = run("run", "steps=2-3");
  EXPECT_THAT(output, HasSubstr("steps 2-3: compute "));
  EXPECT_THAT(output, HasSubstr("run/profiles/steps-2-3.json"));
  const TraceEvents events(file("steps-2-3.json"));
  events.expect_nested();
  using Names = std::multiset<std::string>;
  EXPECT_EQ(events.names(0, "host"),
            (Names{"step 2", "data wait", "queue the step", "wait for its result", "step 3",
                   "data wait", "queue the step", "wait for its result"}));
  const Names pipeline = events.names(0, "pipeline");
  for (const char* name : {"forward 0", "forward 1", "forward 2", "backward 0", "backward 2",
                           "sum gradients", "optimizer"})
    EXPECT_EQ(pipeline.count(name), 2u) << name;
  const Names compute = events.names(0, "compute");
  // Two layers, three micro-batches of two sequences, two steps.
  EXPECT_EQ(compute.count("attention_forward 2x4x24x8 causal"), 12u);
  EXPECT_EQ(compute.count("attention_backward 2x4x24x8 causal"), 12u);
  // One matmul for q, k and v: 2 x 24 tokens, 32 + 16 + 16 columns of 32.
  EXPECT_EQ(compute.count("matmul 48x64x32 b^T"), 12u);
  EXPECT_GT(compute.count("adamw"), 0u);
  // Forward and backward of each layer and of the embedding; the head has both in its forward.
  const Names layers = events.names(0, "layers");
  EXPECT_EQ(layers.count("layer 0"), 12u);
  EXPECT_EQ(layers.count("layer 1"), 12u);
  EXPECT_EQ(layers.count("embedding"), 12u);
  EXPECT_EQ(layers.count("head"), 6u);
  // Each operation is inside a step.
  for (const auto& operation : events.lanes.at({0, "compute"})) {
    bool inside = false;
    for (const auto& host : events.lanes.at({0, "host"}))
      inside |= host.name.starts_with("step ") && host.begin <= operation.begin &&
                operation.end <= host.end;
    EXPECT_TRUE(inside) << operation.name;
  }
}

TEST_F(ProfiledRun, SaysWhatTheAnalysisNeeds) {
  run("run", "steps=2-3");
  const Profile profile = read_profile(directory_ / "run" / "profiles" / "steps-2-3.json");
  EXPECT_EQ(profile.facts.first_step, 2);
  EXPECT_EQ(profile.facts.last_step, 3);
  EXPECT_EQ(profile.facts.ranks, 1);
  EXPECT_EQ(profile.facts.precision, "fp64");
  EXPECT_GT(profile.facts.peak_flops, 0);
  EXPECT_GT(profile.facts.memory_bytes_per_s, 0);
  EXPECT_THAT(profile.facts.device, HasSubstr("cpu: 1 thread"));
  EXPECT_EQ(parse_saved_config(profile.facts.config, "profile").model.layers, 2);
  // The trainer's clock has the same steps.
  std::vector<double> trainer;
  std::ifstream metrics(directory_ / "run" / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);)
    trainer.push_back(json::parse(line).at("step_time_s"));
  ASSERT_EQ(profile.facts.step_s.size(), 2u);
  EXPECT_NEAR(profile.facts.step_s[0], trainer.at(1), 1e-6);
  EXPECT_NEAR(profile.facts.step_s[1], trainer.at(2), 1e-6);
}

// The categories of each step add up to its time, and the matmuls have the FLOPs of the model.
TEST_F(ProfiledRun, IsAnalyzed) {
  run("run", "steps=2-3");
  const ProfileAnalysis analysis =
      analyze(read_profile(directory_ / "run" / "profiles" / "steps-2-3.json"), "test");
  ASSERT_EQ(analysis.steps.size(), 2u);
  for (const StepBreakdown& step : analysis.steps) {
    double sum = 0;
    for (const double seconds : step.seconds) sum += seconds;
    EXPECT_NEAR(sum, step.wall_s, 1e-9);
    EXPECT_GT(step[TimeCategory::Kernel], 0);
  }
  double matmul_flops = 0;
  for (const OperationTotal& one : analysis.operations.operations)
    if (one.work == WorkKind::Matmul) matmul_flops += one.flops;
  // A forward and two matmuls of the same size in the backward, per weight of a matrix and token:
  // 2 layers of q, k, v, output, gate, up and down, and the head.
  const double weights = 2 * (32 * (32 + 16 + 16) + 32 * 32 + 3 * 32 * 48) + 32 * 256;
  EXPECT_DOUBLE_EQ(matmul_flops, 6 * weights * 6 * 24);
  std::vector<std::string> layers;
  for (const PartTotal& one : analysis.operations.layers) layers.push_back(one.name);
  EXPECT_THAT(layers, testing::ElementsAre("embedding", "layer 0", "layer 1", "head", ""));
}

TEST_F(ProfiledRun, IsOfTheThirdAndFourthStepByDefault) {
  run("run", "");
  EXPECT_EQ(TraceEvents(file("steps-3-4.json")).names(0, "host").count("step 3"), 1u);
}

TEST_F(ProfiledRun, AShortRunWritesWhatItHas) {
  run("run", "steps=4-9");
  EXPECT_EQ(TraceEvents(file("steps-4-4.json")).names(0, "host").count("step 4"), 1u);
}

TEST_F(ProfiledRun, WarnsIfTheStepsAreNotReached) {
  EXPECT_THAT(
      run("run", "steps=5-6"),
      HasSubstr("no profile: steps 5-6 were requested, but this process trained steps 1-4"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "run" / "profiles"));
  EXPECT_THAT(run("run", "steps=2"), HasSubstr("no profile: this process had no step to train"));
}

TEST_F(ProfiledRun, AFullDiskDoesNotEndTheRun) {
  std::filesystem::create_directories(directory_ / "run");
  std::ofstream(directory_ / "run" / "profiles") << "not a directory";
  EXPECT_THAT(run("run", "steps=2"), HasSubstr("no profile: "));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "run" / "checkpoints" / "step-00000004"));
}

TEST_F(ProfiledRun, ComputesTheSame) {
  run("traced", "steps=1-4");
  run("half", "steps=2");
  const auto losses = [&](const char* name) {
    std::vector<double> result;
    std::ifstream file(directory_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      result.push_back(json::parse(line).at("loss"));
    return result;
  };
  run_training(small_config((directory_ / "corpus.txt").string(), (directory_ / "plain").string(),
                            "steps: 4, eval_every: 0, checkpoint_every: 0, precision: fp64"),
               ResumeMode::Never, 1);
  ASSERT_EQ(losses("plain").size(), 4u);
  EXPECT_EQ(losses("traced"), losses("plain"));
  EXPECT_EQ(losses("half"), losses("plain"));
}

}  // namespace
}  // namespace kintsugi
