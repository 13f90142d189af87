#include "serve/step_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "serve/page_pool.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Its pages are numbered from `page`.
StepSequence single(std::int32_t token, std::int64_t position, std::int32_t page) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(position / kPageTokens + 1));
  std::iota(pages.begin(), pages.end(), page);
  return {.tokens = {token},
          .position = position,
          .slot = token,
          .pages = std::move(pages),
          .targets = {-1}};
}
// Three tokens, of which the last two are read.
const StepSequence kChunk{.tokens = {50, 51, 52},
                          .position = 15,
                          .slot = 9,
                          .pages = {4, 6},
                          .targets = {52, -1},
                          .whole = true};

TEST(StepLayout, SinglesComeFirstAndChunksAreTiled) {
  const StepLayout layout({single(7, 3, 2), kChunk, single(8, 20, 0)}, {.tile_tokens = 2});
  EXPECT_THAT(layout.ids, ElementsAre(7, 8, 50, 51, 52));
  EXPECT_THAT(layout.positions, ElementsAre(3, 20, 15, 16, 17));
  // Page 2, then page 1 of {0, 1}, then the last token of page 4 and the first two of page 6.
  EXPECT_THAT(layout.cache_rows, ElementsAre(35, 20, 79, 96, 97));
  EXPECT_EQ(layout.singles, 2);
  EXPECT_THAT(layout.slots, ElementsAre(7, 8));
  EXPECT_THAT(layout.single_tiles, ElementsAre(0, 1, 0, 3, 1, 1, 2, 20));
  EXPECT_THAT(layout.chunk_tiles, ElementsAre(2, 2, 1, 15, 4, 1, 1, 17));
  ASSERT_EQ(layout.chunks.size(), 1u);
  EXPECT_EQ(layout.chunks[0].first, 2);
  EXPECT_EQ(layout.chunks[0].slot, 9);
  EXPECT_THAT(layout.read_rows, ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(layout.targets, ElementsAre(-1, -1, 52, -1));
  EXPECT_THAT(layout.reads_of[0], ElementsAre(0));
  EXPECT_THAT(layout.reads_of[1], ElementsAre(2, 3));
  EXPECT_THAT(layout.whole_reads, ElementsAre(3));
  EXPECT_EQ(layout.page_columns, 256 / 16);
  EXPECT_EQ(layout.pages[16], 4) << "the second sequence";
  EXPECT_EQ(layout.key, 0u);
}

TEST(StepLayout, StepsOfSinglesArePaddedForReplay) {
  const StepShape shape{.pads_singles = true};
  const auto step = [&](std::size_t count, std::int64_t position) {
    return StepLayout(std::vector<StepSequence>(count, single(7, position, 2)), shape);
  };
  const StepLayout three = step(3, 3);
  EXPECT_THAT(three.cache_rows, ElementsAre(35, 35, 35, -1));
  EXPECT_THAT(three.slots, ElementsAre(7, 7, 7, -1));
  EXPECT_EQ(three.single_tiles.size(), 16u);
  EXPECT_EQ(three.single_tiles[13], 0) << "no tokens";
  EXPECT_EQ(three.reads(), 4);
  EXPECT_NE(three.key, 0u);
  EXPECT_EQ(three.key, step(4, 9).key) << "the same calls";
  EXPECT_EQ(three.pages.size(), step(4, 9).pages.size());
  EXPECT_NE(three.key, step(5, 3).key);
  EXPECT_NE(three.key, step(3, 300).key) << "longer tables";
}

// A step with chunks has no room for padding, and is computed once.
TEST(StepLayout, OtherStepsAreNotPadded) {
  const StepLayout layout({single(7, 3, 2), single(8, 3, 0), single(9, 3, 4), kChunk},
                          {.pads_singles = true});
  EXPECT_EQ(layout.rows(), 6);
  EXPECT_EQ(layout.singles, 3);
  EXPECT_EQ(layout.key, 0u);
}

TEST(StepLayout, FixedNumbersOfRowsAndReads) {
  const StepLayout layout({single(7, 3, 2), kChunk}, {.fixed_rows = 8, .fixed_reads = 4});
  EXPECT_EQ(layout.rows(), 8);
  EXPECT_EQ(layout.reads(), 4);
  EXPECT_THAT(layout.cache_rows, ElementsAre(35, 79, 96, 97, -1, -1, -1, -1));
  EXPECT_EQ(layout.single_tiles.size(), 4u) << "rows without a sequence have no tile";
}

TEST(StepLayout, ModelsWithoutAttentionHaveNoPages) {
  StepSequence state = single(7, 3, 2);
  state.pages = {};
  const StepLayout layout({state}, {.has_pages = false});
  EXPECT_THAT(layout.pages, IsEmpty());
  EXPECT_THAT(layout.single_tiles, IsEmpty());
  EXPECT_THAT(layout.slots, ElementsAre(7));
}

TEST(StepLayout, Sizes) {
  const std::vector<std::int64_t> singles = {1, 2, 3, 5, 8, 9, 16, 17, 60, 64};
  const std::vector<std::int64_t> padded = {1, 2, 4, 8, 8, 16, 16, 24, 64, 64};
  for (std::size_t i = 0; i < singles.size(); ++i) EXPECT_EQ(padded_singles(singles[i]), padded[i]);
  EXPECT_EQ(padded_keys(1), 256);
  EXPECT_EQ(padded_keys(257), 512);
}

}  // namespace
}  // namespace kintsugi
