#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <tuple>

#include "data/sampling/packing_index.h"

namespace kintsugi {
namespace {

using Sizes = std::vector<std::uint32_t>;

using Rows = std::vector<Sizes>;

// Best-fit decreasing as a textbook states it: for each item, look at all bins. Of equal rooms, the
// one that a bin got to first is taken.
Rows textbook(const Sizes& sizes, std::uint32_t capacity) {
  struct Row {
    std::uint32_t room;
    std::size_t since;
    Sizes items;
  };
  Sizes order(sizes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return sizes[a] > sizes[b]; });
  std::vector<Row> rows;
  for (std::size_t turn = 0; turn < order.size(); ++turn) {
    const std::uint32_t size = sizes[order[turn]];
    auto best = rows.end();
    for (auto row = rows.begin(); row != rows.end(); ++row)
      if (row->room >= size && (best == rows.end() || std::tie(row->room, row->since) <
                                                          std::tie(best->room, best->since)))
        best = row;
    if (best == rows.end()) best = rows.insert(rows.end(), {capacity, 0, {}});
    best->room -= size;
    best->since = turn;
    best->items.push_back(order[turn]);
  }
  Rows items;
  for (Row& row : rows) items.push_back(std::move(row.items));
  return items;
}

Rows packed(const Sizes& sizes, std::uint32_t capacity) {
  const Bins bins = best_fit_decreasing(sizes, capacity);
  Rows rows;
  std::size_t at = 0;
  for (const std::uint32_t end : bins.ends) {
    Sizes& row = rows.emplace_back();
    while (at < end) row.push_back(bins.items[at++]);
  }
  EXPECT_EQ(at, sizes.size());
  return rows;
}

TEST(BestFit, GivesTheRowsOfTheTextbookAlgorithm) {
  std::mt19937 random(1);
  for (const std::uint32_t capacity : {1u, 2u, 7u, 63u, 64u, 65u, 1000u, 5000u})
    for (const std::size_t items : {1u, 5u, 100u, 700u}) {
      Sizes sizes(items);
      for (const std::uint32_t limit : {capacity, std::max(capacity / 5, 1u)}) {
        for (std::uint32_t& size : sizes) size = 1 + random() % limit;
        EXPECT_EQ(packed(sizes, capacity), textbook(sizes, capacity))
            << items << " items of up to " << limit << " in bins of " << capacity;
      }
    }
}

// Rows that TRL's packing (bfd) gives for sequences of these lengths.
TEST(BestFit, GivesTheRowsOfTrl) {
  EXPECT_EQ(packed({4, 2, 3, 1}, 4), (Rows{{0}, {2, 3}, {1}}));
  EXPECT_EQ(packed({3, 4, 1}, 4), (Rows{{1}, {0, 2}}));
  EXPECT_EQ(packed({4, 2, 4, 1}, 4), (Rows{{0}, {2}, {1, 3}}));
  // Several rows with equal room.
  EXPECT_EQ(packed({6, 6, 4, 4, 3, 7, 3, 2}, 10), (Rows{{5, 4}, {0, 2}, {1, 3}, {6, 7}}));
  EXPECT_EQ(packed({8, 4, 8, 3, 8, 8, 1, 7, 3, 2}, 8),
            (Rows{{0}, {2}, {4}, {5}, {7, 6}, {1, 3}, {8, 9}}));
  EXPECT_EQ(packed({14, 4, 16, 16, 6, 7, 7, 5, 13, 16, 1, 10, 1, 13}, 16),
            (Rows{{2}, {3}, {9}, {0, 10, 12}, {8}, {13}, {11, 4}, {5, 6}, {7, 1}}));
  EXPECT_EQ(packed({2, 8, 1, 12, 3, 12, 6, 12, 3, 1, 6, 1, 12, 12, 6, 12, 12, 1, 12, 3}, 12),
            (Rows{{3},
                  {5},
                  {7},
                  {12},
                  {13},
                  {15},
                  {16},
                  {18},
                  {1, 4, 2},
                  {6, 10},
                  {14, 8, 19},
                  {0, 9, 11, 17}}));
}

TEST(BestFit, ClosedForms) {
  EXPECT_TRUE(best_fit_decreasing({}, 10).ends.empty());
  // Six items of a third of the bin fill two bins; two items of more than half need one each.
  EXPECT_EQ(best_fit_decreasing(Sizes(6, 4), 12).ends, (Sizes{3, 6}));
  EXPECT_EQ(best_fit_decreasing(Sizes{7, 7}, 12).ends, (Sizes{1, 2}));
  // 8 and 6 open bins with rooms 4 and 6; 4 fits the first exactly, 5 the second.
  const Bins bins = best_fit_decreasing(Sizes{4, 6, 8, 5}, 12);
  EXPECT_EQ(bins.items, (Sizes{2, 0, 1, 3}));
  EXPECT_EQ(bins.ends, (Sizes{2, 4}));
}

TEST(BestFit, AMillionItemsTakeSecondsAtMost) {
  std::mt19937 random(2);
  Sizes sizes(1 << 20);
  for (std::uint32_t& size : sizes) size = 1 + random() % 8192;
  const auto begin = std::chrono::steady_clock::now();
  const Bins bins = best_fit_decreasing(sizes, 8192);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  std::uint64_t total = 0;
  for (const std::uint32_t size : sizes) total += size;
  EXPECT_LT(static_cast<double>(bins.ends.size()) * 8192, 1.01 * static_cast<double>(total));
}

}  // namespace
}  // namespace kintsugi
