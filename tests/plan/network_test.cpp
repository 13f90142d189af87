// Messages of pipelines, collectives that overlap with matmuls, late data.
#include <gtest/gtest.h>

#include "plan/costs/costs.h"
#include "plan/costs/footprint.h"
#include "plan/costs/pipeline_time.h"
#include "plan/search/planner.h"

namespace kintsugi {
namespace {

// Stages that wait for every message they receive or send.
TEST(Network, StopsOfAPipeline) {
  StageTimes times{.message = 10, .stops = {20, 40, 40, 20}};
  times.forward.assign(4, 1.0);
  times.backward.assign(4, 2.0);
  for (const int m : {4, 16, 64}) {
    const PipelineShape shape{PipelineKind::OneForwardOneBackward, 4, m, 1};
    // m times a middle stage, the other stages once, and three links in both directions.
    EXPECT_NEAR(pipeline_s(shape, times), m * (3 + 40) + 3 * 3 + 6 * 10, 1e-9);
    StageTimes first = times;
    first.first_message = 5;
    EXPECT_NEAR(pipeline_s(shape, first) - pipeline_s(shape, times), 6 * 5, 1e-9);
  }
  EXPECT_EQ(slowest_stage(times), 1u);
}

// Four stages of four ranks on two nodes of eight: neighbouring stages are on one node, the first
// and the last one, which have the tied embedding, are not.
TEST(Network, TiedEmbeddingsCrossTheNetwork) {
  Machine machine = load_machine("dgx-a100");
  const PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  const auto waits = [&](double gb_s) {
    machine.network.gb_s = gb_s;
    return Planner(job, machine).timing({.pp = 4, .dp = 4, .micro_batch = 1}).data_s;
  };
  // An all-reduce of fp32 gradients of two ranks sends them once, 1.2 times as slowly as alone.
  const double gigabytes = 4e-9 * 128'256 * 2048;
  EXPECT_NEAR((waits(0.5) - waits(1)) / (1.2 * gigabytes * (1 / 0.5 - 1)), 1, 0.01);
}

TEST(Costs, CollectivesOverlapWithMatmuls) {
  const Machine machine = load_machine("dgx-a100");
  const GroupLinks inside = links_of(machine, {8, 1}), across = links_of(machine, {16, 1});
  const TracedOperation product{.kind = TracedOperation::Kind::Matmul,
                                .dtype = DType::BF16,
                                .flops = 2.0 * 4096 * 8192 * 8192,
                                .bytes = 1e8,
                                .m = 4096,
                                .n = 8192,
                                .k = 8192};
  const auto exposed = [&](Collective collective, const GroupLinks& links, double bytes,
                           double hides) {
    const LinksOf all = [&](const std::string&) -> const GroupLinks& { return links; };
    const TracedOperation exchange{.kind = TracedOperation::Kind::Collective,
                                   .bytes = bytes,
                                   .collective = collective,
                                   .group = "tp",
                                   .ticket = 1};
    const TracedOperation wait{.kind = TracedOperation::Kind::Wait, .group = "tp", .ticket = 1};
    return cost_of(machine, {.hides_tensor = hides}, {{exchange, wait, product}, 1}, all).exposed_s;
  };
  const double whole = exposed(Collective::AllGather, inside, 1e8, 0);
  EXPECT_NEAR(exposed(Collective::AllGather, inside, 1e8, 0.5), whole / 2, 1e-9);
  EXPECT_NEAR(exposed(Collective::ReduceScatter, inside, 1e8, 0.5), whole / 2, 1e-9);
  // All-reduces do not overlap this way, nor do collectives across nodes.
  EXPECT_EQ(exposed(Collective::AllReduce, inside, 1e8, 0.5),
            exposed(Collective::AllReduce, inside, 1e8, 0));
  EXPECT_EQ(exposed(Collective::AllGather, across, 1e8, 0.5),
            exposed(Collective::AllGather, across, 1e8, 0));
  // At most the duration of the matmul is hidden.
  const double lasts = matmul_s(machine.gpu, {}, product);
  EXPECT_NEAR(exposed(Collective::AllGather, inside, 1e11, 0) -
                  exposed(Collective::AllGather, inside, 1e11, 0.5),
              lasts, 1e-9);
}

TEST(Loading, WaitsOnlyForWhatIsSlowerThanTheStep) {
  Machine machine = load_machine("dgx-h100");
  const PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  const Layout layout{.tp = 8, .dp = 4};  // four nodes with different sequences
  EXPECT_EQ(loading_s(job, layout, machine), 0);
  machine.storage_gb_s = 1e-3;
  const double bytes = 4 * 64 * 4096;  // token ids above 65,535 take four bytes
  EXPECT_NEAR(loading_s(job, layout, machine), bytes / 1e6, 1e-9);
  // The two nodes of a pipeline replica both read its sequences.
  EXPECT_NEAR(loading_s(job, {.tp = 8, .pp = 2, .dp = 2}, machine), 2 * bytes / 1e6, 1e-9);
  machine.storage_gb_s = 0;
  machine.node.loader_mtokens_s = 0.1;
  const double slow = 64 * 4096 / 4 / 0.1e6;
  EXPECT_NEAR(loading_s(job, layout, machine), slow, 1e-9);
  const double usual = Planner(job, load_machine("dgx-h100")).timing(layout).step_s;
  EXPECT_LT(usual, slow);
  EXPECT_NEAR(Planner(job, machine).timing(layout).step_s, slow, 1e-9);
  machine.node.loader_mtokens_s = 100;
  EXPECT_EQ(Planner(job, machine).timing(layout).step_s, usual);
}

TEST(Footprint, PausesForCheckpoints) {
  PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  Machine machine = load_machine("dgx-h100");
  machine.storage_gb_s = 0.1;
  machine.gpu.idle_w = 100;
  machine.node.host_w = 1000;
  Evaluation e{.layout = {.dp = 8}};
  e.step_s = 1;
  e.gpu_joule = e.node_joule = 3600;
  const double tokens = 1000 * job.tokens();
  const RunFootprint without = footprint_of(e, job, machine, tokens);
  job.checkpoint_every = 300;
  const RunFootprint with = footprint_of(e, job, machine, tokens);
  EXPECT_EQ(without.checkpoints, 0);
  EXPECT_EQ(with.checkpoints, 4);  // after 300, 600, 900 steps and at the end
  // 14 bytes of each of 1.236 billion parameters.
  const double still = 4 * 14 * 1.2358 / 0.1;
  EXPECT_NEAR((with.days - without.days) * 86400, still, 0.01 * still);
  EXPECT_NEAR((with.energy.gpu_mwh - without.energy.gpu_mwh) * 3.6e9, 8 * 100 * still, 8 * still);
  EXPECT_NEAR((with.energy.node_mwh.value() - without.energy.node_mwh.value()) * 3.6e9,
              1800 * still, 18 * still);
}

}  // namespace
}  // namespace kintsugi
