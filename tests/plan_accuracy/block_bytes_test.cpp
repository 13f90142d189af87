// Activation memory against closed forms of published papers.
#include "plan_accuracy/block_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/schedule.h"

namespace kintsugi {
namespace {

BlockShape gpt(double h, double heads) {
  return {.hidden = h, .ffn = 4 * h, .heads = heads, .query = h, .qkv = 3 * h};
}

// arXiv 2205.05198, Table 2, per token: sbh (34 + 5as/h) and its tensor and sequence parallel
// forms.
TEST(BlockBytes, TableOfKorthikanti) {
  for (const auto& [h, a, s] : {std::tuple{6144.0, 64.0, 2048.0}, {12288.0, 96.0, 4096.0}}) {
    BlockOptions run{.length = s, .fused_attention = false};
    EXPECT_DOUBLE_EQ(block_bytes(gpt(h, a), run), h * (34 + 5 * a * s / h));
    run.tp = 8;
    EXPECT_DOUBLE_EQ(block_bytes(gpt(h, a), run), h * (10 + 24.0 / 8 + 5 * a * s / (h * 8)));
    run.rows = 8;
    EXPECT_DOUBLE_EQ(block_bytes(gpt(h, a), run), h / 8 * (34 + 5 * a * s / h));
    run.fused_attention = true;  // the log-sum-exp is not in the table
    EXPECT_DOUBLE_EQ(block_bytes(gpt(h, a), run), 34 * h / 8 + 4 * a / 8);
  }
}

// Llama 3 8B, tensor by tensor in bytes: block input, residual, two norms; q, k, v, attention
// output; gate, up, gate x up; log-sum-exp.
TEST(BlockBytes, LlamaTensorByTensor) {
  const BlockShape llama{
      .hidden = 4096, .ffn = 14336, .heads = 32, .query = 4096, .qkv = 6144, .gated = true};
  const double whole = 2 * (4 * 4096 + 4096 + 1024 + 1024 + 4096 + 3 * 14336) + 4 * 32;
  EXPECT_DOUBLE_EQ(block_bytes(llama, {.dropout = false}), whole);
  const double copied = whole + 2 * 4096;  // transposed attention output
  EXPECT_DOUBLE_EQ(block_bytes(llama, {.dropout = false, .copies_output = true}), copied);
}

// The peak number of forwards without backward in the engine's schedules.
int held(const PipelineSchedule& schedule, int rank) {
  int now = 0, most = 0;
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    if (action.kind == ActionKind::Forward) most = std::max(most, ++now);
    if (action.kind == ActionKind::Backward) --now;
  }
  return most;
}

TEST(BlockBytes, FlightOfTheSchedules) {
  for (const int p : {1, 2, 4, 8})
    for (const int v : {1, 2, 3})
      for (const int m : {p, 2 * p, 4 * p}) {
        if (p == 1 && v > 1) continue;
        const PipelineShape shape{
            .kind = v > 1 ? PipelineKind::Interleaved : PipelineKind::OneForwardOneBackward,
            .stages = p,
            .micro_batches = m,
            .chunks = v};
        const PipelineSchedule schedule = make_pipeline_schedule(shape);
        for (int rank = 0; rank < p; ++rank)
          EXPECT_EQ(chunks_in_flight({p, rank, v, static_cast<double>(m)}), held(schedule, rank))
              << p << " " << v << " " << m << " " << rank;
      }
  // arXiv 2205.05198: 1 + (p - 1) / (p v) times the plain schedule's p on the first stage.
  EXPECT_DOUBLE_EQ(chunks_in_flight({8, 0, 3, 64}) / 3, 8 * (1 + 7 / 24.0));
  // Five micro-batches do not divide into groups of four: Megatron uses a group of five.
  EXPECT_EQ(chunks_in_flight({4, 3, 3, 5}), 2 * 5 + 1);
}

}  // namespace
}  // namespace kintsugi
