// Preference pairs and weights of losses: every layout trains as one process does.
#include <gtest/gtest.h>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

const RankLayout kLayouts[] = {
    {.dp = 2},
    {.dp = 2, .zero = 3},
    {.tp = 2, .sequence_parallel = true},
    {.cp = 2},
    {.cp = 2, .context = ContextMethod::Ulysses},
    {.pp = 2},
    {.dp = 2, .zero = 2, .cp = 2},
    {.tp = 2, .pp = 2, .chunks = 2, .schedule = PipelineKind::Interleaved},
    {.cp = 2, .pp = 2, .schedule = PipelineKind::ZeroBubbleH1},
};

void expect_as_one_process(const Training& training) {
  const Outcome expected = trained({}, training, 3);
  for (const double norm : expected.norms) EXPECT_GT(norm, 0);
  for (const RankLayout& layout : kLayouts)
    expect_same(trained(layout, training, 3), expected, to_string(layout));
}

// Rows of 12 tokens with no, one or two pairs; the last micro-batch is smaller.
TEST(PreferenceRanks, TrainAsOneProcessDoes) {
  expect_as_one_process({.model = tiny_model("llama-tied", 4),
                         .sequences = 10,
                         .micro = 3,
                         .length = 12,
                         .preference = PreferenceOptions{.beta = 0.3}});
}

TEST(PreferenceRanks, WithRecomputationAndDropout) {
  expect_as_one_process({.model = tiny_model("gpt2", 4),
                         .sequences = 8,
                         .micro = 2,
                         .length = 12,
                         .recompute = Recompute::Full,
                         .dropout = 0.2,
                         .preference = PreferenceOptions{.beta = 0.1, .label_smoothing = 0.2}});
}

TEST(WeightedRanks, TrainAsOneProcessDoes) {
  expect_as_one_process({.model = tiny_model("llama-gqa", 4),
                         .sequences = 8,
                         .micro = 2,
                         .length = 12,
                         .masked = true,
                         .weighted = true});
}

}  // namespace
}  // namespace kintsugi
