// The file of kintsugi plan --replay, and the messages that kintsugi-simulate makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <numeric>

#include "cli/plan/simulator.h"
#include "core/error.h"
#include "plan/search/planner.h"
#include "simulate/step/replay_file.h"
#include "simulate/step/streams.h"
#include "simulate/step/traffic.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct PlannedStep {
  const char* model;
  Layout layout;
};

std::vector<PlannedStep> planned_steps() {
  using enum PipelineKind;
  return {
      {"gpt-1.4b",
       {.tp = 2,
        .pp = 4,
        .dp = 8,
        .chunks = 2,
        .schedule = Interleaved,
        .zero = 1,
        .sequence_parallel = true}},
      {"llama-1b", {.tp = 4, .pp = 4, .dp = 2, .schedule = ZeroBubbleH1}},
      {"llama-1b", {.cp = 4, .dp = 8, .zero = 1, .recompute = Recompute::Full}},
      {"llama-1b", {.cp = 4, .context = ContextMethod::Ulysses, .dp = 8, .zero = 1}},
      {"olmoe-1b-7b", {.pp = 2, .dp = 8, .zero = 1, .ep = 4, .dispatch = Dispatch::AllToAll}},
  };
}

// Without ZeRO 2 and 3, what the file has of a stage, with the priced times of its calls, is what
// the planner adds up for the slowest one.
TEST(StepReplay, HasWhatThePlannerPriced) {
  for (const auto& [model, layout] : planned_steps()) {
    Planner planner({.model = load_preset(model), .length = 2048, .batch = 128},
                    load_machine("dgx-h100"));
    const Evaluation e = planner.timing(layout);
    const StepReplay replay = planner.replay(e);
    std::vector<double> priced;
    for (const StepReplay::Call& call : replay.calls) priced.push_back(call.priced_s);
    ItemTime slowest;
    for (const auto& stage : chunk_times(replay, priced)) {
      ItemTime sum;
      for (const ChunkTime& chunk : stage) (sum += chunk.forward) += chunk.backward;
      if (sum.total_s > slowest.total_s) slowest = sum;
    }
    const double m = replay.pipeline.micro_batches;
    EXPECT_NEAR(m * slowest.total_s / (e.ideal_s + e.tensor_s), 1, 1e-6) << to_string(layout);
    EXPECT_NEAR(m * slowest.exposed_s(), e.tensor_s, 1e-6 * e.step_s) << to_string(layout);
    EXPECT_EQ(to_json(parse_replay(to_json(replay), "again")), to_json(replay));
  }
}

// ZeRO 3 gathers every layer twice per micro-batch and scatters its gradients once.
TEST(StepReplay, CallsOfShardedLayers) {
  Planner planner({.model = load_preset("llama-1b"), .length = 2048, .batch = 16},
                  load_machine("dgx-h100"));
  const StepReplay replay = planner.replay(planner.timing({.dp = 16, .zero = 3}));
  std::map<Collective, int> calls;
  for (const StepReplay::Items* items :
       {&replay.stages[0].chunks[0].forward, &replay.stages[0].chunks[0].backward})
    for (const StepReplay::Item& item : *items)
      if (item.kind == StepReplay::Item::Kind::Start) ++calls[replay.calls[item.index].kind];
  EXPECT_EQ(calls[Collective::AllGather], 2 * 16);
  EXPECT_EQ(calls[Collective::ReduceScatter], 16);
}

TEST(StepReplay, RefusesNonsense) {
  Planner planner({.model = load_preset("llama-1b"), .length = 2048, .batch = 16},
                  load_machine("dgx-h100"));
  const std::string good = to_json(planner.replay(planner.timing({.tp = 2, .pp = 2, .dp = 4})));
  const auto error = [&](const std::string& text) -> std::string {
    try {
      parse_replay(text, "step.json");
    } catch (const UserError& e) {
      return e.what();
    }
    return "accepted";
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return error(text.replace(at, from.size(), to));
  };
  EXPECT_THAT(error("{"), HasSubstr("step.json"));
  EXPECT_THAT(error("[]"), HasSubstr("step.json"));
  EXPECT_THAT(error(R"({"format": "other"})"), HasSubstr("kintsugi plan --replay"));
  EXPECT_THAT(with("\"ranks\":16", "\"ranks\":0"), HasSubstr("step.json.ranks must be a number"));
  EXPECT_THAT(with("\"ranks\":16", "\"ranks\":15"), HasSubstr("no 2 equal stages"));
  EXPECT_THAT(with("\"ranks\":16", "\"ranks\":1.5"), HasSubstr("whole number"));
  EXPECT_THAT(with("\"gb_s\":", "\"gb\":"), HasSubstr("step.json.network has no gb_s"));
  EXPECT_THAT(with("[\"wait\",", "[\"wait\",9"), HasSubstr("was not started"));
  EXPECT_THAT(with("[\"wait\",", "[\"sleep\","), HasSubstr("is not compute, piece, start or wait"));
  EXPECT_THAT(with("all_reduce", "all_lose"), HasSubstr("no collective 'all_lose'"));
  EXPECT_THAT(with("\"chunks\":1", "\"chunks\":2"), HasSubstr("chunks"));
  EXPECT_THAT(with("\"stages\":2", "\"stages\":4"), HasSubstr("stages"));
}

double total(const std::vector<NodeFlow>& flows) {
  return std::accumulate(flows.begin(), flows.end(), 0.0,
                         [](double sum, const NodeFlow& flow) { return sum + flow.bytes; });
}

// 16 ranks on two nodes, in groups of eight that are two ranks apart: four of a group on a node.
StepReplay two_nodes(Collective kind, double bytes) {
  return {.ranks = 16,
          .node = {.gpus = 8, .link_gb_s = 100, .latency_us = 1},
          .network = {.gb_s = 10, .latency_us = 5},
          .groups = {{"shard", 8, 2}},
          .calls = {{0, kind, bytes}}};
}

// Each of the four rings of a group crosses to the other node once, with a quarter of what a rank
// sends; the GPU at which a ring leaves a node sends nothing in the node for it.
TEST(Traffic, RingsUseAllAdapters) {
  const StepReplay replay = two_nodes(Collective::AllGather, 800);
  const Traffic traffic = ring_traffic(replay, replay.calls[0], {0, 16});
  const double sent = 800.0 * 7 / 8;
  ASSERT_EQ(traffic.network.size(), 2u);
  for (const NodeFlow& flow : traffic.network) {
    EXPECT_NEAR(flow.bytes, 2 * sent, 1e-9);  // two groups
    EXPECT_EQ(flow.gb_s, 80);
  }
  std::map<int, double> by_gpu;
  for (const GpuFlow& flow : traffic.inside) by_gpu[flow.from] += flow.bytes;
  ASSERT_EQ(by_gpu.size(), 8u);
  for (const auto& [gpu, bytes] : by_gpu) EXPECT_NEAR(bytes, sent * 3 / 4, 1e-9) << gpu;
  EXPECT_NEAR(traffic.latency_s, 7 * 5e-6, 1e-12);
}

TEST(Traffic, ExchangesSendEachRankItsPart) {
  const StepReplay replay = two_nodes(Collective::AllToAll, 800);
  const Traffic traffic = ring_traffic(replay, replay.calls[0], {0, 16});
  EXPECT_NEAR(total(traffic.network), 16 * 4 * 100.0, 1e-9);  // four ranks on the other node
  double inside = 0;
  for (const GpuFlow& flow : traffic.inside) inside += flow.bytes;
  EXPECT_NEAR(inside, 8 * 3 * 100.0, 1e-9);  // of one node
}

// Recursive halving sends half of the bytes first, then a quarter, …; a tree sends all of them.
TEST(Traffic, AllReducesInSteps) {
  StepReplay replay = two_nodes(Collective::AllReduce, 800);
  const auto steps = logarithmic_traffic(replay, replay.calls[0], {0, 16});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_TRUE(steps[0].network.empty());
  EXPECT_NEAR(total(steps[2].network), 16 * 2 * 100.0, 1e-9);
  replay.groups[0] = {"copy", 3, 1};
  replay.ranks = 6;
  replay.node.gpus = 1;
  const auto tree = logarithmic_traffic(replay, replay.calls[0], {0, 6});
  ASSERT_EQ(tree.size(), 2u);
  EXPECT_NEAR(total(tree[0].network), 2 * 2 * 800.0, 1e-9);
  EXPECT_EQ(tree[1].network.size(), 2u);
}

TEST(Traffic, MessagesOfANodeAreOneFlow) {
  StepReplay replay = two_nodes(Collective::AllReduce, 1);
  replay.pipeline.stages = 2;
  replay.message_bytes = 7;
  const Traffic across = message_traffic(replay, 0, 1);
  ASSERT_EQ(across.network.size(), 1u);
  EXPECT_EQ(across.network[0].bytes, 8 * 7);
  EXPECT_EQ(across.network[0].gb_s, 80);
  replay.pipeline.stages = 4;
  const Traffic inside = message_traffic(replay, 0, 1);
  ASSERT_EQ(inside.network.size(), 1u);
  EXPECT_EQ(inside.network[0].bytes, 7);
  EXPECT_EQ(inside.network[0].gb_s, 100);
}

TEST(Simulator, IsLookedForBesideTheProgramAndOnThePath) {
  const TemporaryDirectory directory;
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", directory.path().c_str(), 1);
  std::string error;
  try {
    find_simulator(directory / "kintsugi");
  } catch (const UserError& missing) {
    error = missing.what();
  }
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(error, AllOf(HasSubstr("kintsugi-simulate"), HasSubstr("libsimgrid-dev")));
  directory.write("kintsugi-simulate", "");
  EXPECT_EQ(find_simulator(directory / "kintsugi"), directory / "kintsugi-simulate");
}

}  // namespace
}  // namespace kintsugi
