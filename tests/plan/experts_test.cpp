// The planner and mixtures of experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "plan/costs/routing.h"
#include "plan/search/search.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

PlanJob experts_job(const char* preset, std::int64_t length = 4096) {
  return {.model = load_preset(preset), .length = length, .batch = 512};
}

Layout spread_over(int ep, Dispatch dispatch) { return {.dp = ep, .ep = ep, .dispatch = dispatch}; }

TEST(Routing, TheBusiestRank) {
  PlanJob job = experts_job("qwen3-30b-a3b");
  const auto rows = [&](double imbalance, int ep, std::int64_t tokens) {
    job.imbalance = imbalance;
    return busiest_rank(job, spread_over(ep, Dispatch::AllToAll), tokens).rows;
  };
  EXPECT_EQ(rows(1, 128, 512), 1);              // forced balance
  EXPECT_EQ(rows(1.5, 1, 512), 1);              // nobody waits
  EXPECT_NEAR(rows(1.5, 128, 1e9), 1.5, 1e-3);  // a rank is an expert
  // Chance alone: experts.md, 1 + sqrt(2 ln E / rows) = 1.14 with 512 rows of 128 experts.
  EXPECT_NEAR(rows(1 + 1e-9, 128, 64), 1 + std::sqrt(2 * std::log(128) / 512), 1e-6);
  EXPECT_NEAR(rows(1 + 1e-9, 128, 64), 1.14, 0.005);
  // More experts on a rank average out.
  EXPECT_NEAR(rows(1.5, 8, 1e9) - 1, 0.5 * std::sqrt(8 * std::log(8) / (128 * std::log(128))),
              1e-3);
  EXPECT_EQ(rows(1000, 8, 4096), 8);  // all choices of all tokens
  job.model.balance.capacity = 1.1;
  EXPECT_EQ(rows(1.5, 128, 4096), 1.1);
}

double rows_sent(int ep, Dispatch dispatch) {
  PlanJob job = experts_job("qwen3-30b-a3b");
  job.imbalance = 1;
  const MicroBatchTrace trace = trace_micro_batch(job, job.model, spread_over(ep, dispatch));
  const double row = 2.0 * 2048;
  for (const TracedOperation& o : trace.layers[0].plain.forward.operations)
    if (o.kind == TracedOperation::Kind::Collective && o.group == "experts" &&
        o.dtype == DType::BF16)
      return o.bytes * (ep - 1) / ep / (row * 4096);
  return 0;
}

// docs/experts.md: rows per token and direction, 8 of 128 experts.
TEST(Routing, RowsThatTravel) {
  EXPECT_NEAR(rows_sent(2, Dispatch::AllToAll), 1.0, 0.05);
  EXPECT_NEAR(rows_sent(4, Dispatch::AllToAll), 2.7, 0.05);
  EXPECT_NEAR(rows_sent(8, Dispatch::AllToAll), 4.7, 0.05);
  EXPECT_NEAR(rows_sent(16, Dispatch::AllToAll), 6.2, 0.05);
  EXPECT_NEAR(rows_sent(64, Dispatch::AllToAll), 7.7, 0.06);
  for (const int ep : {2, 4, 8, 16}) EXPECT_NEAR(rows_sent(ep, Dispatch::AllGather), ep - 1, 1e-9);
}

// 16 ranks on 2 nodes: half of the rows cross the network, each rank over its own adapter.
TEST(Routing, AnAllToAllUsesBothLinks) {
  const Machine machine = load_machine("dgx-h100");
  const auto seconds = [&](std::int64_t ranks) {
    return collective_s(links_of(machine, {ranks, 1}), Collective::AllToAll, 1e9);
  };
  EXPECT_NEAR(seconds(8), 7.0 / 8 / machine.node.link_gb_s, 1e-4);
  EXPECT_NEAR(seconds(16), 0.5 / machine.network.gb_s, 0.03 * 0.5 / machine.network.gb_s);
}

// The host launches nothing before the device has counted the visits.
TEST(Routing, TheHostWaits) {
  const Machine machine = load_machine("dgx-h100");
  const LinksOf none = [](const std::string&) -> const GroupLinks& {
    static const GroupLinks links;
    return links;
  };
  TracedOperation copy{.kind = TracedOperation::Kind::Memory, .bytes = 8};
  const TracedOperation next = copy;
  const double queued = cost_of(machine, {}, {{copy, next}, 0}, none).total_s;
  copy.host_waits = true;
  const Software software;
  EXPECT_NEAR(cost_of(machine, software, {{copy, next}, 0}, none).total_s - queued,
              1e-6 * (software.host_wait_us + software.host_us), 1e-7);
}

// A rank that computes more takes longer, a benchmark with forced balance is faster.
TEST(ExpertTimes, GrowWithTheImbalance) {
  PlanJob job = experts_job("qwen3-30b-a3b");
  const auto step_s = [&](double imbalance, Dispatch dispatch) {
    job.imbalance = imbalance;
    Planner planner(job, load_machine("dgx-h100"));
    Layout layout = spread_over(16, dispatch);
    layout.zero = 1;
    return planner.timing(layout).step_s;
  };
  for (const Dispatch dispatch : {Dispatch::AllGather, Dispatch::AllToAll}) {
    EXPECT_LT(1.02 * step_s(1, dispatch), step_s(1.5, dispatch));
    EXPECT_LT(1.02 * step_s(1.5, dispatch), step_s(3, dispatch));
  }
}

// tokens/s of bench/README.md, "Experts": one H200, bf16, sequences of 4,096 tokens, 65,536 tokens
// per step.
TEST(ExpertTimes, AreThoseOfThisEngine) {
  struct Measured {
    const char* preset;
    std::int64_t layers, micro;
    double rate;
  };
  for (const Measured& one :
       {Measured{"olmoe-1b-7b", 16, 2, 49'658}, Measured{"qwen3-30b-a3b", 8, 4, 78'003},
        Measured{"qwen3-30b-a3b", 4, 4, 124'034}}) {
    PlanJob job{.model = load_preset(one.preset), .length = 4096, .batch = 16};
    job.model.layers = one.layers;
    Planner planner(job, load_machine("h200"));
    EXPECT_NEAR(planner.timing({.micro_batch = one.micro}).tokens_per_s_per_gpu / one.rate, 1, 0.1)
        << one.preset << " " << one.layers;
  }
}

// The memory that is planned for visitors is that of the worst case: ep times the own tokens, each
// with as many choices as a rank has experts.
TEST(ExpertMemory, IsPlannedForAllVisitors) {
  const PlanJob job = experts_job("qwen3-30b-a3b");
  const auto stash = [&](int ep) {
    const MicroBatchTrace trace =
        trace_micro_batch(job, job.model, spread_over(ep, Dispatch::AllGather));
    return static_cast<double>(total(trace.layers[0].plain.stash));
  };
  // Of 16 ranks each has 8 experts: gate, up and their product, for 16 times the choices.
  const double rows = 4096.0 * 8, row = 2.0 * 3 * 768;
  EXPECT_NEAR((stash(16) - stash(1)) / (15 * rows * row), 1, 0.02);
}

TEST(ExpertSearch, TriesBothDispatchers) {
  PlanJob job = experts_job("qwen3-30b-a3b");
  bool gathers = false, visits = false;
  for_each_layout(job, load_machine("dgx-h100"), {.gpus = 16, .ep = 8}, [&](const Layout& layout) {
    EXPECT_EQ(std::max(layout.ep, layout.tp), 8);
    gathers |= layout.expert_ranks() > 2 && layout.dispatch == Dispatch::AllGather;
    visits |= layout.dispatch == Dispatch::AllToAll;
  });
  EXPECT_TRUE(gathers && visits);
}

}  // namespace
}  // namespace kintsugi
