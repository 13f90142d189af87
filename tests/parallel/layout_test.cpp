#include "parallel/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

ModelConfig model() {
  ModelConfig config{.vocab_size = 1000,
                     .hidden_size = 96,
                     .layers = 12,
                     .heads = 12,
                     .kv_heads = 6,
                     .max_positions = 64,
                     .rope_scaling = {}};
  config.complete_and_check();
  return config;
}

Grid fit(LayoutRequest request, int ranks) {
  request.model = model();
  return fit_layout(request, ranks);
}

std::string refusal(const LayoutRequest& request, int ranks) {
  try {
    fit(request, ranks);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FitLayout, DataRanksFillTheWorld) {
  EXPECT_EQ(fit({.batch = 16}, 8), (Grid{.dp = 8, .shard_group = 1}));
  EXPECT_EQ(fit({.zero = 2, .batch = 16, .micro = 2}, 8), (Grid{.dp = 8}));
  EXPECT_EQ(fit({.dp = 4, .zero = 3, .shard_group = 2, .batch = 16}, 4),
            (Grid{.dp = 4, .shard_group = 2}));
  EXPECT_EQ(fit({.tp = 2, .pp = 3, .batch = 4}, 12),
            (Grid{.tp = 2, .dp = 2, .pp = 3, .shard_group = 1}));
}

TEST(FitLayout, NamesTheNearestChoices) {
  EXPECT_THAT(refusal({.dp = 4, .batch = 16}, 8),
              HasSubstr("layout.dp is 4, but 8 ranks were started, which makes 8: set it to 8"));
  EXPECT_THAT(refusal({.batch = 16}, 3),
              HasSubstr("batch.global is 16, which 3 data ranks cannot share evenly: use 15 or 18, "
                        "or start 2 or 4 ranks"));
  EXPECT_THAT(refusal({.batch = 2, .micro = 2}, 4), HasSubstr("use 8, or start 2 ranks"));
  EXPECT_THAT(
      refusal({.batch = 24, .micro = 4}, 4),
      HasSubstr("a rank's share of batch.global 24 among 4 data ranks is 6: use batch.micro "
                "3 or 6"));
  EXPECT_THAT(refusal({.zero = 1, .shard_group = 3, .batch = 16}, 8),
              HasSubstr("layout.shard_group is 3, which does not divide 8 data ranks: use 2 or 4"));
  EXPECT_THAT(refusal({.tp = 3, .batch = 16}, 8), HasSubstr("does not divide 8 ranks: use 2 or 4"));
}

}  // namespace
}  // namespace kintsugi
