#include "plan/costs/costs.h"

#include <gtest/gtest.h>

#include "parallel/schedule_timing.h"
#include "plan/costs/pipeline_time.h"
#include "plan/search/planner.h"

namespace kintsugi {
namespace {

using Transfer = TracedOperation::Transfer;

TEST(Collectives, RingsInsideANode) {
  const Machine machine = load_machine("dgx-h100");
  const GroupLinks links = links_of(machine, {.size = 8, .stride = 1});
  EXPECT_EQ(links.nodes, 1);
  // Every link carries 2 (n - 1) / n of the bytes.
  const double bytes = 1e9, busy = 7.0 / 8 * bytes / (machine.node.link_gb_s * 1e9);
  EXPECT_NEAR(collective_s(links, Transfer::AllGather, bytes), busy, 0.01 * busy);
  EXPECT_NEAR(collective_s(links, Transfer::ReduceScatter, bytes), busy, 0.01 * busy);
  EXPECT_NEAR(collective_s(links, Transfer::AllReduce, bytes), 2 * busy, 0.01 * busy);
  EXPECT_EQ(collective_s(links_of(machine, {}), Transfer::AllReduce, bytes), 0);
}

TEST(Collectives, LevelsOfAMachine) {
  const Machine frontier = load_machine("frontier");
  const auto rate = [&](std::int64_t size, std::int64_t stride) {
    return links_of(frontier, {size, stride}).gb_s;
  };
  EXPECT_EQ(rate(2, 1), frontier.node.module_gb_s);  // one card
  EXPECT_EQ(rate(4, 1), frontier.node.link_gb_s);    // two cards
  EXPECT_EQ(rate(4, 2), frontier.node.link_gb_s);
  EXPECT_LT(rate(4, 8), frontier.network.gb_s);  // one rank per node, some congestion
  EXPECT_GT(rate(16, 1), 2 * rate(4, 8));        // ranks of a node use their adapters together
  EXPECT_LT(rate(1024, 8), rate(4, 8));
  EXPECT_EQ(links_of(frontier, {16, 4}).nodes, 8);
}

TEST(Costs, MatmulsOfManyShapes) {
  const GpuSpec gpu = load_machine("dgx-a100").gpu;
  const auto efficiency = [&](double m, double n, double k) {
    return matmul_efficiency(gpu, m, n, k);
  };
  EXPECT_NEAR(efficiency(32768, 32768, 32768), gpu.gemm_efficiency, 0.02);
  EXPECT_LT(efficiency(4096, 4096, 128), 0.5 * efficiency(4096, 4096, 8192));
  EXPECT_LT(efficiency(130, 4096, 4096), 0.7 * efficiency(128, 4096, 4096));
  EXPECT_LT(efficiency(4096, 4100, 4096), efficiency(4096, 4096, 4096));
  // A vocabulary may be unaligned: rows of logits are padded.
  EXPECT_NEAR(efficiency(4096, 50257, 768) / efficiency(4096, 50304, 768), 1, 0.01);
  for (const double size : {16.0, 100.0, 1000.0, 20000.0}) {
    EXPECT_GT(efficiency(size, size, size), 0);
    EXPECT_LE(efficiency(size, size, size), gpu.gemm_efficiency);
  }
}

// A tp all-reduce overlaps with the matmul that is queued after it.
TEST(Costs, OverlapFollowsTheWaits) {
  Machine machine = load_machine("dgx-a100");
  const GroupLinks links = links_of(machine, {8, 1});
  const LinksOf all = [&](const std::string&) -> const GroupLinks& { return links; };
  const TracedOperation product{.kind = TracedOperation::Kind::Matmul,
                                .dtype = DType::BF16,
                                .flops = 2.0 * 4096 * 8192 * 8192,
                                .bytes = 1e8,
                                .m = 4096,
                                .n = 8192,
                                .k = 8192};
  const TracedOperation sum{
      .kind = TracedOperation::Kind::Collective, .bytes = 1e8, .group = "tp", .ticket = 1};
  const TracedOperation wait{.kind = TracedOperation::Kind::Wait, .group = "tp", .ticket = 1};
  const TraceCost hidden = cost_of(machine, {}, {{sum, product, wait}, 1}, all),
                  shown = cost_of(machine, {}, {{sum, wait, product}, 1}, all);
  EXPECT_EQ(hidden.exposed_s, 0);
  EXPECT_NEAR(shown.exposed_s, shown.communication_s, 1e-9);
  EXPECT_NEAR(shown.total_s - hidden.total_s, shown.communication_s, 1e-5);
}

// The closed forms against the simulation of the engine's schedules.
TEST(PipelineTime, IsThatOfTheSchedules) {
  for (const PipelineKind kind : {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                                  PipelineKind::Interleaved, PipelineKind::ZeroBubbleH1})
    for (const int stages : {1, 2, 4, 8})
      for (const int factor : {1, 2, 5}) {
        const int chunks = kind == PipelineKind::Interleaved && stages > 1 ? 2 : 1;
        const PipelineShape shape{chunks == 1 && kind == PipelineKind::Interleaved
                                      ? PipelineKind::OneForwardOneBackward
                                      : kind,
                                  stages, factor * stages, chunks};
        const PipelineTiming exact =
            simulate_pipeline(make_pipeline_schedule(shape), {.forward = 1.0 / chunks,
                                                              .backward_input = 1.0 / chunks,
                                                              .backward_weight = 1.0 / chunks});
        StageTimes times;
        times.forward.assign(static_cast<std::size_t>(stages), 1.0);
        times.backward.assign(static_cast<std::size_t>(stages), 2.0);
        EXPECT_NEAR(pipeline_s(shape, times), exact.makespan, 1e-9)
            << to_string(kind) << " " << stages << " x " << factor * stages;
      }
}

// Seed 001: the bubble is (p - 1) / m of the ideal time, and interleaving divides it.
TEST(PipelineTime, BubbleCurves) {
  for (const int m : {16, 64, 256}) {
    StageTimes times;
    times.forward.assign(16, 1.0);
    times.backward.assign(16, 2.0);
    const double ideal = 3.0 * m;
    EXPECT_NEAR(pipeline_s({PipelineKind::OneForwardOneBackward, 16, m, 1}, times) / ideal - 1,
                15.0 / m, 1e-12);
    EXPECT_NEAR(pipeline_s({PipelineKind::Interleaved, 16, m, 3}, times) / ideal - 1, 5.0 / m,
                1e-12);
  }
}

}  // namespace
}  // namespace kintsugi
