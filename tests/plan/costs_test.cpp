#include "plan/costs/costs.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "parallel/schedule_timing.h"
#include "plan/costs/pipeline_time.h"
#include "plan/search/planner.h"

namespace kintsugi {
namespace {

TEST(Collectives, RingsInsideANode) {
  const Machine machine = load_machine("dgx-h100");
  const GroupLinks links = links_of(machine, {.size = 8, .stride = 1});
  EXPECT_EQ(links.nodes, 1);
  // Every link carries 2 (n - 1) / n of the bytes.
  const double bytes = 1e9, busy = 7.0 / 8 * bytes / (machine.node.link_gb_s * 1e9);
  EXPECT_NEAR(collective_s(links, Collective::AllGather, bytes), busy, 0.01 * busy);
  EXPECT_NEAR(collective_s(links, Collective::ReduceScatter, bytes), busy, 0.01 * busy);
  EXPECT_NEAR(collective_s(links, Collective::AllReduce, bytes), 2 * busy, 0.01 * busy);
  EXPECT_EQ(collective_s(links_of(machine, {}), Collective::AllReduce, bytes), 0);
}

// Each of k GPUs on a node has a ring that leaves the node there. Of groups that do not fill their
// nodes, two share one, and all ranks advance as slowly as those there.
TEST(Collectives, RingsAcrossNodes) {
  const Machine machine = load_machine("dgx-h100");
  const double inside = machine.node.link_gb_s;
  const GroupLinks all = links_of(machine, {.size = 64, .stride = 1}),
                   pairs = links_of(machine, {.size = 64, .stride = 4}),
                   odd = links_of(machine, {.size = 63, .stride = 4});
  EXPECT_NEAR(all.gb_s, std::min(8 * all.across_gb_s, inside * 8 / 7), 1e-9);
  EXPECT_NEAR(pairs.gb_s, 2 * pairs.across_gb_s, 1e-9);
  EXPECT_NEAR(odd.gb_s, odd.across_gb_s, 1e-9);
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

// TFLOP/s of an H200 with scales per row: fast accumulation in the forward, full in the backward.
TEST(Costs, MatmulsInFp8) {
  struct Measured {
    std::int64_t m, n, k;
    double tflops;
  };
  const GpuSpec gpu = load_machine("h200").gpu;
  const auto seconds = [&](const Measured& one, DType dtype, const Software& software) {
    TracedOperation o{.kind = TracedOperation::Kind::Matmul, .dtype = dtype};
    o.m = one.m, o.n = one.n, o.k = one.k;
    o.flops =
        2.0 * static_cast<double>(one.m) * static_cast<double>(one.n) * static_cast<double>(one.k);
    o.bytes = static_cast<double>((one.m + one.n) * one.k) * static_cast<double>(size_of(dtype)) +
              2.0 * static_cast<double>(one.m * one.n);
    return matmul_s(gpu, software, o);
  };
  double measured_s = 0, predicted_s = 0;
  for (const Measured& one :
       {Measured{8192, 6144, 4096, 1503}, Measured{8192, 4096, 4096, 1448},
        Measured{8192, 28672, 4096, 1400}, Measured{8192, 4096, 14336, 1382},
        Measured{28672, 4096, 8192, 1241}, Measured{8192, 4096, 28672, 1211},
        Measured{8192, 37888, 3584, 1354}, Measured{8192, 3584, 18944, 1390},
        Measured{37888, 3584, 8192, 1179}, Measured{8192, 3584, 37888, 1238}}) {
    const double predicted = seconds(one, DType::F8, {}),
                 measured = 2e-12 * static_cast<double>(one.m * one.n * one.k) / one.tflops;
    EXPECT_NEAR(predicted / measured, 1, 0.25) << one.m << " " << one.n << " " << one.k;
    measured_s += measured;
    predicted_s += predicted;
    const double bf16 = seconds(one, DType::BF16, {});
    EXPECT_GT(bf16 / predicted, 1.6);
    EXPECT_LT(bf16 / predicted, 2);
    // The conversions are operations of this engine's traces; those of other programs are not.
    EXPECT_EQ(seconds(one, DType::F8, {.fp8 = true}), predicted);
    EXPECT_LT(seconds(one, DType::BF16, {.fp8 = true}), bf16);
  }
  EXPECT_NEAR(predicted_s / measured_s, 1, 0.05);
}

// A trace with fp8 matmuls and the quantization of their operands, made by hand.
TEST(Costs, QuantizationIsMemoryTraffic) {
  const Machine machine = load_machine("h200");
  const GroupLinks links = links_of(machine, {});
  const LinksOf all = [&](const std::string&) -> const GroupLinks& { return links; };
  const TracedOperation quantize{
      .kind = TracedOperation::Kind::Memory, .name = "quantize", .bytes = 1e9};
  const TracedOperation matmul{.kind = TracedOperation::Kind::Matmul,
                               .dtype = DType::F8,
                               .name = "matmul_fp8",
                               .flops = 2.0 * 8192 * 8192 * 8192,
                               .bytes = 3e8,
                               .m = 8192,
                               .n = 8192,
                               .k = 8192};
  const TraceCost cost = cost_of(machine, {}, {{quantize, matmul}, 1}, all);
  EXPECT_EQ(cost.memory_s, memory_s(machine.gpu, {}, 1e9));
  EXPECT_EQ(cost.matmul_s, matmul_s(machine.gpu, {}, matmul));
  EXPECT_EQ(cost.attention_s, 0);
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

// Executed in the order of the schedule, with messages, and extrapolated from a few rounds.
TEST(PipelineTime, ExecutedIsThatOfTheSchedules) {
  for (const PipelineKind kind : {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                                  PipelineKind::Interleaved, PipelineKind::ZeroBubbleH1})
    for (const int stages : {2, 4, 8})
      for (const int factor : {1, 2, 5, 20}) {
        const int chunks = kind == PipelineKind::Interleaved ? 3 : 1;
        const PipelineShape shape{kind, stages, factor * stages, chunks};
        const PipelineTiming exact = simulate_pipeline(
            make_pipeline_schedule(shape),
            {.forward = 1, .backward_input = 1.5, .backward_weight = 0.5, .message = 0.3});
        StageTimes times{.weight_share = 0.25, .message = 0.3};
        times.forward.assign(static_cast<std::size_t>(stages), chunks);
        times.backward.assign(static_cast<std::size_t>(stages), 2.0 * chunks);
        times.chunks.assign(static_cast<std::size_t>(stages),
                            std::vector<ChunkTimes>(static_cast<std::size_t>(chunks), {1, 2}));
        EXPECT_NEAR(executed_pipeline_s(shape, times) / exact.makespan, 1, 1e-3)
            << to_string(kind) << " " << stages << " x " << factor * stages;
      }
}

// In 1F1B the first of p stages has p micro-batches under way, and each of them passes through all
// stages, with 2 (p - 1) messages, before the first stage can begin the next one.
TEST(PipelineTime, MicroBatchesWaitForMessages) {
  const auto seconds = [](int micro_batches) {
    StageTimes times{.forward = {1, 1, 1, 1}, .backward = {2, 2, 2, 2}, .message = 0.25};
    times.chunks.assign(4, {{1, 2}});
    return executed_pipeline_s({PipelineKind::OneForwardOneBackward, 4, micro_batches, 1}, times);
  };
  EXPECT_NEAR((seconds(200) - seconds(100)) / 100, 3 + 2 * 0.25 * 3 / 4, 1e-9);
}

// The longest path through the actions of a schedule: each follows the one before it on its rank,
// and the one that makes its input. Found by repeated relaxation.
double longest_path(const PipelineShape& shape, const std::vector<std::vector<ChunkTimes>>& times) {
  const PipelineSchedule schedule = make_pipeline_schedule(shape);
  std::map<std::tuple<bool, int, int, int>, double> end;  // (forward, rank, chunk, micro-batch)
  double last = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (int rank = 0; rank < shape.stages; ++rank) {
      double now = 0;
      for (const Action& a : schedule.ranks[static_cast<std::size_t>(rank)]) {
        if (!is_compute(a.kind)) continue;
        const bool forward = a.kind == ActionKind::Forward;
        const PipelineChunk own{rank, a.chunk};
        if (const auto from = forward ? previous_chunk(shape, own) : next_chunk(shape, own))
          now = std::max(now, end[{forward, from->rank, from->chunk, a.micro_batch}]);
        const ChunkTimes& chunk =
            times[static_cast<std::size_t>(rank)][static_cast<std::size_t>(a.chunk)];
        now += forward ? chunk.forward : chunk.backward;
        double& known = end[{forward, rank, a.chunk, a.micro_batch}];
        changed = changed || known != now;
        last = std::max(last, known = now);
      }
    }
  }
  return last;
}

// Every fifth chunk has two layers. Their mean is not what ranks wait for.
TEST(PipelineTime, UnequalChunks) {
  for (const int factor : {1, 3, 16}) {
    const PipelineShape shape{PipelineKind::Interleaved, 8, 8 * factor, 4};
    StageTimes times;
    for (int rank = 0; rank < 8; ++rank) {
      std::vector<ChunkTimes> chunks;
      for (int chunk = 0; chunk < 4; ++chunk) {
        const double layers = (8 * chunk + rank) % 5 == 0 ? 2 : 1;
        chunks.push_back({layers, 2 * layers});
      }
      times.chunks.push_back(chunks);
      double layers = 0;
      for (const ChunkTimes& chunk : chunks) layers += chunk.forward;
      times.forward.push_back(layers);
      times.backward.push_back(2 * layers);
    }
    const double exact = longest_path(shape, times.chunks);
    EXPECT_NEAR(executed_pipeline_s(shape, times) / exact, 1, 1e-3) << factor;
    EXPECT_GT(exact, 1.05 * pipeline_s(shape, times));
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
