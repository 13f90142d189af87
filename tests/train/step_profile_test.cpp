#include "train/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "backend/traced_backend.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "support/trace_events.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(StepTrace, StepsAreANumberOrARange) {
  EXPECT_EQ(trace_request("f", "3-4").first, 3);
  EXPECT_EQ(trace_request("f", "3-4").last, 4);
  EXPECT_EQ(trace_request("f", "7").first, 7);
  EXPECT_EQ(trace_request("f", "7").last, 7);
  for (const char* bad : {"", "-", "3-", "-4", "4-3", "0-2", "0", "a-b", "3-4-5", "3 - 4", "1.5",
                          "3-99999999999999999999", "1-101"})
    EXPECT_THROW(trace_request("f", bad), UserError) << bad;
}

TEST(StepTrace, TheFileMustBeWritable) {
  const TemporaryDirectory directory;
  EXPECT_NO_THROW(check_writable(directory / "new.json"));
  EXPECT_NO_THROW(check_writable("new.json"));
  EXPECT_THROW(check_writable(directory / "none" / "new.json"), UserError);
  EXPECT_THROW(check_writable(directory.path()), UserError);
  std::ofstream(directory / "file") << "x";
  EXPECT_THROW(check_writable(directory / "file" / "new.json"), UserError);
}

class TracedRun : public testing::Test {
 protected:
  TracedRun() { std::ofstream(directory_ / "corpus.txt") << small_corpus(300); }
  // Three micro-batches of two sequences in every step.
  std::string run(const std::string& name, const char* steps) {
    const RunConfig config = parse_run_config(
        small_config((directory_ / "corpus.txt").string(), (directory_ / name).string(),
                     "steps: 4, eval_every: 0, checkpoint_every: 0, precision: fp64"),
        "test.yaml");
    Trace trace;
    const auto backend = make_traced_backend(make_cpu_backend(1), trace);
    const Groups groups = single_rank_groups(*backend);
    Trainer trainer(*backend, config, groups);
    StepTrace step_trace(trace, trace_request(directory_ / "trace.json", steps), groups);
    trainer.trace_with(step_trace);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    trainer.run(ResumeMode::Never);
    return testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  }
  json trace() const {
    std::ifstream file(directory_ / "trace.json");
    return json::parse(file);
  }
  TemporaryDirectory directory_;
};

TEST_F(TracedRun, ContainsTheOperationsOfItsSteps) {
  const std::string output = run("run", "2-3");
  EXPECT_THAT(output, HasSubstr("steps 2-3: compute "));
  const TraceEvents events(trace());
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
  // Two layers, three micro-batches, two steps.
  EXPECT_EQ(compute.count("attention_forward"), 12u);
  EXPECT_EQ(compute.count("attention_backward"), 12u);
  // One matmul for q, k and v: 2 x 24 tokens, 32 + 16 + 16 columns of 32.
  EXPECT_EQ(compute.count("matmul 48x64x32 b^T"), 12u);
  EXPECT_GT(compute.count("adamw"), 0u);
  // Each operation is inside a step.
  for (const auto& operation : events.lanes.at({0, "compute"})) {
    bool inside = false;
    for (const auto& host : events.lanes.at({0, "host"}))
      inside |= host.name.starts_with("step ") && host.begin <= operation.begin &&
                operation.end <= host.end;
    EXPECT_TRUE(inside) << operation.name;
  }
}

TEST_F(TracedRun, AShortRunWritesWhatItHas) {
  run("run", "4-9");
  EXPECT_EQ(TraceEvents(trace()).names(0, "host").count("step 4"), 1u);
}

TEST_F(TracedRun, WarnsIfTheStepsAreNotReached) {
  EXPECT_THAT(run("run", "5-6"), HasSubstr("no trace"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "trace.json"));
}

TEST_F(TracedRun, ComputesTheSame) {
  run("traced", "1-4");
  run("half", "2");
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
