#pragma once

#include <cstddef>
#include <cstdint>

namespace kintsugi {

struct RequestRange {
  std::size_t begin = 0, end = 0;
};

// The requests of one of `ranks`: those that begin in its part of the summed costs.
template <class Cost>
RequestRange range_of(std::size_t count, int rank, int ranks, Cost&& cost) {
  std::uint64_t all = 0, before = 0;
  for (std::size_t i = 0; i < count; ++i) all += cost(i);
  RequestRange range{count, count};
  for (std::size_t i = 0; i < count; ++i) {
    const auto owner = static_cast<int>(before * static_cast<std::uint64_t>(ranks) / all);
    if (owner == rank && range.begin == count) range.begin = i;
    if (owner > rank) {
      range.end = i;
      break;
    }
    before += cost(i);
  }
  if (range.begin == count) return {0, 0};
  return range;
}

}  // namespace kintsugi
