// Latent attention in layouts that the tests of experts leave out: queries without latents,
// recomputation and Muon.
#include <gtest/gtest.h>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

Training latent_training(std::int64_t query_rank) {
  Training training{.model = tiny_model("deepseek_v3", 3),
                    .sequences = 12,
                    .micro = 2,
                    .length = 8,
                    .masked = true,
                    .optimizer = {.clip = 0.1}};  // so that the gradient norm matters
  training.model.latent->query_rank = query_rank;
  return training;
}

void expect_in_layouts(const Training& training, const std::vector<RankLayout>& layouts) {
  Training whole = training;
  whole.recompute = Recompute::None;
  const Outcome alone = trained({}, whole, 3);
  for (const RankLayout& layout : layouts)
    expect_same(trained(layout, training, 3), alone, to_string(layout));
}

// The queries are sharded then, beside the latents, which are not.
TEST(LatentAttentionLayouts, QueriesNeedNoLatents) {
  expect_in_layouts(latent_training(0),
                    {{.tp = 2},
                     {.tp = 4, .sequence_parallel = true},
                     {.cp = 2},
                     {.dp = 2, .zero = 3, .tp = 2, .cp = 2, .sequence_parallel = true},
                     {.pp = 3, .schedule = PipelineKind::ZeroBubbleH1}});
}

TEST(LatentAttentionLayouts, RecomputeChangesNothing) {
  Training training = latent_training(6);
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    training.recompute = recompute;
    expect_in_layouts(training, {{},
                                 {.tp = 2, .sequence_parallel = true},
                                 {.pp = 3, .schedule = PipelineKind::ZeroBubbleH1}});
  }
}

TEST(LatentAttentionLayouts, MuonUpdatesWholeMatrices) {
  Training training = latent_training(6);
  training.optimizer.kind = OptimizerKind::Muon;
  expect_in_layouts(training, {{.tp = 2}, {.dp = 2, .zero = 1, .tp = 2}, {.dp = 4, .zero = 2}});
}

}  // namespace
}  // namespace kintsugi
