#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kintsugi {

// Items in bins: those of bin b are items[ends[b - 1]] … items[ends[b] - 1], in the order in
// which they were placed.
struct Bins {
  std::vector<std::uint32_t> items;
  std::vector<std::uint32_t> ends;  // one per bin
};

// Best-fit decreasing: the items are placed from the largest to the smallest, each into the bin
// with the least room that is enough, or into a new bin. Sizes are 1 … capacity. Items of one size
// are placed in their order, and of bins with the same room the one that got to it first is used,
// as TRL does it (strategy `bfd`). Takes O(items · log capacity + capacity).
Bins best_fit_decreasing(std::span<const std::uint32_t> sizes, std::uint32_t capacity);

}  // namespace kintsugi
