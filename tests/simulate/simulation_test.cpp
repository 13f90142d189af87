// kintsugi-simulate as kintsugi plan starts it. Skipped where it was not built.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "parallel/schedule_timing.h"
#include "plan/search/step_replay.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class Simulation : public PlanCommandTest {
 protected:
  void SetUp() override {
    if (built_program("kintsugi-simulate").empty()) GTEST_SKIP() << "SimGrid was not found";
  }
  json simulated(const StepReplay& replay, const std::string& network = "fat-tree") {
    directory_.write("step.json", to_json(replay));
    const Outcome outcome = run_in_shell(fmt::format("'{}' step.json --network {} --json",
                                                     built_program("kintsugi-simulate"), network));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return json::parse(outcome.out);
  }
  std::vector<double> call_s(const StepReplay& replay, const std::string& network = "fat-tree") {
    std::vector<double> seconds;
    const json step = simulated(replay, network);
    for (const json& call : step["calls"]) seconds.push_back(call["simulated_s"]);
    return seconds;
  }
};

StepReplay::Item compute(double seconds) {
  return {.kind = StepReplay::Item::Kind::Compute, .value = seconds};
}

// One chunk per stage, unless there are more: a forward of 2 and a backward of 4 units.
StepReplay step_of(const PipelineShape& shape, std::int64_t ranks, std::int64_t gpus) {
  constexpr double kUnit = 1e-3;
  StepReplay replay{.ranks = ranks,
                    .node = {.gpus = gpus, .link_gb_s = 100, .latency_us = 1},
                    .network = {.gb_s = 10, .latency_us = 5},
                    .pipeline = shape,
                    .priced = {.step_s = 1, .compute_s = 1}};
  const StepReplay::Chunk chunk{1, {compute(2 * kUnit)}, {compute(4 * kUnit)}};
  StepReplay::Stage stage;
  stage.chunks.assign(static_cast<std::size_t>(shape.chunks), chunk);
  replay.stages.assign(static_cast<std::size_t>(shape.stages), stage);
  return replay;
}

// By hand: 10 GB/s between nodes and 100 within, 5 and 1 µs per hop.
TEST_F(Simulation, CollectivesTakeTheirClosedForms) {
  StepReplay nodes = step_of({}, 4, 1);
  nodes.groups = {{"shard", 4, 1}, {"experts", 2, 1}};
  nodes.calls = {{0, Collective::AllGather, 4e8}, {0, Collective::AllReduce, 4e8},
                 {0, Collective::AllToAll, 4e8},  {1, Collective::Receive, 1e8},
                 {0, Collective::AllReduce, 4},   {0, Collective::Broadcast, 1e8}};
  const std::vector<double> expected = {0.03 + 3 * 5e-6, 0.06 + 4 * 5e-6, 0.03 + 5e-6,
                                        0.01 + 5e-6,     4 * 5e-6,        0.01 + 4 * 5e-6};
  for (const char* network : {"fat-tree", "dragonfly"}) {
    const std::vector<double> seconds = call_s(nodes, network);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(seconds[i], expected[i], 1e-8) << network << " call " << i;
  }
  StepReplay inside = step_of({}, 4, 4);
  inside.groups = {{"tp", 4, 1}};
  inside.calls = {{0, Collective::ReduceScatter, 4e8}, {0, Collective::AllToAll, 4e8}};
  inside.slowdown = 2;
  const std::vector<double> seconds = call_s(inside);
  EXPECT_NEAR(seconds[0], 2 * (0.003 + 3e-6), 1e-8);
  EXPECT_NEAR(seconds[1], 2 * (0.003 + 1e-6), 1e-8);
}

// A node whose other GPUs send nothing has only the adapters of those that send.
TEST_F(Simulation, EachGpuHasItsAdapter) {
  StepReplay replay = step_of({}, 9, 8);
  replay.groups = {{"pp", 2, 8}};
  replay.calls = {{0, Collective::Receive, 1e8}};
  EXPECT_NEAR(call_s(replay)[0], 0.01 + 5e-6, 1e-8);
}

// A pipeline of one rank per stage is that of the engine's own timing, which knows no network, if
// no rank receives two messages at a time.
TEST_F(Simulation, PipelinesAreThoseOfTheirSchedules) {
  for (const PipelineShape& shape : {PipelineShape{PipelineKind::OneForwardOneBackward, 4, 8, 1},
                                     PipelineShape{PipelineKind::Interleaved, 4, 8, 2},
                                     PipelineShape{PipelineKind::ZeroBubbleH1, 2, 6, 1},
                                     PipelineShape{PipelineKind::GPipe, 2, 3, 1}}) {
    StepReplay replay = step_of(shape, shape.stages, 1);
    replay.message_bytes = 5e6 - 5e-6 * 1e10;
    const PipelineTiming timing = simulate_pipeline(
        make_pipeline_schedule(shape),
        {.forward = 2e-3, .backward_input = 2e-3, .backward_weight = 2e-3, .message = 0.5e-3});
    EXPECT_NEAR(simulated(replay)["simulated"]["step_time_s"].get<double>(), timing.makespan, 1e-7)
        << to_string(shape.kind);
  }
}

// Two groups of 128 nodes have links for half of the nodes between them, so that messages from one
// to the other take twice as long. Gradients that the ranks of a stage sum stay in a group.
TEST_F(Simulation, GroupsOfADragonflyShareTheirLinks) {
  StepReplay replay = step_of({PipelineKind::OneForwardOneBackward, 2, 1, 1}, 256, 1);
  replay.message_bytes = 1e7;
  replay.groups = {{"shard", 128, 1}};
  replay.calls = {{0, Collective::ReduceScatter, 1e7}};
  replay.stages[0].gradients = {{0, 1}};  // those of stage 1 would compete with its message
  const auto parts = [&](const char* network) { return simulated(replay, network)["simulated"]; };
  const json tree = parts("fat-tree"), dragonfly = parts("dragonfly");
  EXPECT_NEAR(tree["pipeline_s"].get<double>(), 6e-3 + 2 * (1e-3 + 5e-6), 1e-7);
  EXPECT_NEAR(dragonfly["pipeline_s"].get<double>(), 6e-3 + 2 * (2e-3 + 5e-6), 1e-7);
  for (const json& one : {tree, dragonfly})
    EXPECT_NEAR(one["data_wait_s"].get<double>(), 127.0 / 128 * 1e-3 + 127 * 5e-6, 1e-7);
}

// Weights that are gathered when the step starts: the first layer waits for its own, and the last
// one for all.
TEST_F(Simulation, GathersOverlapWithTheFirstForward) {
  StepReplay replay = step_of({}, 2, 1);
  replay.groups = {{"shard", 2, 1}};
  replay.calls = {{0, Collective::AllGather, 8e7}};  // 4 ms and a hop
  replay.stages[0].chunks[0].layers = 4;
  replay.stages[0].weights = {{0, 1}};
  const json waits = simulated(replay)["simulated"];
  // A quarter before the forward of 2 ms, and three quarters beside it.
  EXPECT_NEAR(waits["data_wait_s"].get<double>(), 1e-3 + 1e-3, 2e-5);
  EXPECT_NEAR(waits["step_time_s"].get<double>(), 8e-3, 2e-5);
}

// A layout with tensor, pipeline, data and expert groups whose chunks are equal. What is left is
// in docs/planning.md: the planner overlaps gradients with one backward, the simulation with all.
TEST_F(Simulation, AgreesWithThePlanner) {
  for (const char* network : {"fat-tree", "dragonfly"}) {
    const Outcome outcome =
        run(fmt::format("--model olmoe-1b-7b --machine dgx-h100 --gpus 64 --batch 1024 --tp 2 "
                        "--pp 2 --ep 4 --schedule 1f1b --zero 1 --best 1 --json --simulate {}",
                        network));
    ASSERT_EQ(outcome.code, 0) << outcome.error;
    const json plan = json::parse(outcome.out), step = plan["simulation"];
    EXPECT_NEAR(step["priced"]["step_time_s"].get<double>(),
                plan["best"][0]["step_time_s"].get<double>(), 1e-9);
    EXPECT_LT(std::abs(step["difference_percent"].get<double>()), 10) << outcome.out;
    EXPECT_GT(step["simulated"]["expert_wait_s"].get<double>(), 0);
    EXPECT_GT(step["simulated"]["tensor_wait_s"].get<double>(), 0);
    EXPECT_GT(step["simulated"]["pipeline_s"].get<double>(), 0);
  }
}

TEST_F(Simulation, SaysWhatIsWrong) {
  const std::string simulate = "'" + built_program("kintsugi-simulate") + "' ";
  const auto refused = [&](const std::string& arguments) {
    const Outcome outcome = run_in_shell(simulate + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  };
  EXPECT_THAT(refused(""), HasSubstr("step"));
  EXPECT_THAT(refused("nowhere.json"), HasSubstr("nowhere.json"));
  directory_.write("bad.json", "{\"format\": 3}");
  EXPECT_THAT(refused("bad.json"), HasSubstr("bad.json.format must be a text"));
  EXPECT_THAT(refused("bad.json --network torus"), HasSubstr("fat-tree or dragonfly"));
  directory_.write("step.json", to_json(step_of({}, 1, 1)));
  const Outcome text = run_in_shell(simulate + "step.json");
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_THAT(text.out, AllOf(HasSubstr("simulated on a fat tree of 1 node"), HasSubstr("total"),
                              HasSubstr("The simulated step is 99 % shorter")));
}

using SimulateOption = PlanCommandTest;

TEST_F(SimulateOption, IsCheckedFirst) {
  const std::string job = "--model llama-1b --machine dgx-h100 --gpus 16 --batch 64 ";
  EXPECT_THAT(mistake(job + "--simulate torus"), HasSubstr("--simulate"));
  EXPECT_THAT(mistake(job + "--scaling strong --simulate fat-tree"), HasSubstr("has no effect"));
  EXPECT_THAT(mistake(job + "--offload optimizer --replay step.json"), HasSubstr("offloads"));
  EXPECT_EQ(content_of("step.json"), "");
  const Outcome outcome = run(job + "--best 1 --replay step.json");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(json::parse(content_of("step.json"))["format"], "kintsugi-step-1");
  EXPECT_THAT(mistake(job + "--replay step.json"), HasSubstr("--overwrite"));
}

}  // namespace
}  // namespace kintsugi
