#include "data/sampling/best_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace kintsugi {
namespace {

using Sizes = std::vector<std::uint32_t>;

// Best-fit decreasing as a textbook states it: for each item, look at all bins.
std::vector<std::uint32_t> textbook_rooms(Sizes sizes, std::uint32_t capacity) {
  std::sort(sizes.rbegin(), sizes.rend());
  std::vector<std::uint32_t> rooms;
  for (const std::uint32_t size : sizes) {
    auto best = rooms.end();
    for (auto room = rooms.begin(); room != rooms.end(); ++room)
      if (*room >= size && (best == rooms.end() || *room < *best)) best = room;
    if (best == rooms.end()) best = rooms.insert(rooms.end(), capacity);
    *best -= size;
  }
  std::sort(rooms.begin(), rooms.end());
  return rooms;
}

// The room of each bin. Fails unless each item is in one bin.
std::vector<std::uint32_t> rooms_of(const Bins& bins, const Sizes& sizes, std::uint32_t capacity) {
  std::vector<int> seen(sizes.size(), 0);
  std::vector<std::uint32_t> rooms;
  std::size_t at = 0;
  for (const std::uint32_t end : bins.ends) {
    EXPECT_GT(end, at);
    std::uint32_t used = 0;
    for (const std::size_t begin = at; at < end; ++at) {
      used += sizes[bins.items[at]];
      seen[bins.items[at]] += 1;
      if (at == begin) continue;
      EXPECT_LT(bins.items[at - 1], bins.items[at]);
    }
    EXPECT_LE(used, capacity);
    rooms.push_back(capacity - used);
  }
  EXPECT_EQ(at, sizes.size());
  for (const int times : seen) EXPECT_EQ(times, 1);
  std::sort(rooms.begin(), rooms.end());
  return rooms;
}

TEST(BestFit, LeavesTheRoomsOfTheTextbookAlgorithm) {
  std::mt19937 random(1);
  for (const std::uint32_t capacity : {1u, 2u, 7u, 63u, 64u, 65u, 1000u, 5000u})
    for (const std::size_t items : {1u, 5u, 100u, 700u}) {
      Sizes sizes(items);
      for (const std::uint32_t limit : {capacity, std::max(capacity / 5, 1u)}) {
        for (std::uint32_t& size : sizes) size = 1 + random() % limit;
        const Bins bins = best_fit_decreasing(sizes, capacity);
        EXPECT_EQ(rooms_of(bins, sizes, capacity), textbook_rooms(sizes, capacity))
            << items << " items of up to " << limit << " in bins of " << capacity;
      }
    }
}

TEST(BestFit, ClosedForms) {
  EXPECT_TRUE(best_fit_decreasing({}, 10).ends.empty());
  // Six items of a third of the bin fill two bins; two items of more than half need one each.
  EXPECT_EQ(best_fit_decreasing(Sizes(6, 4), 12).ends, (Sizes{3, 6}));
  EXPECT_EQ(best_fit_decreasing(Sizes{7, 7}, 12).ends, (Sizes{1, 2}));
  // 8 and 6 open bins with rooms 4 and 6; 4 fits the first exactly, 5 the second.
  const Bins bins = best_fit_decreasing(Sizes{4, 6, 8, 5}, 12);
  EXPECT_EQ(bins.items, (Sizes{0, 2, 1, 3}));
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
