#pragma once

#include <cstdint>

#include "core/philox.h"

namespace kintsugi {

// A pseudo-random permutation of [0, n): a keyed Feistel network on the next power of four, applied
// until the result is below n (cycle walking). Constant expected time per index, no storage.
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key) : n_(n), key_(key) {
    while (half_bits_ < 32 && (std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
  }

  std::uint64_t operator()(std::uint64_t index) const {
    do index = scramble(index);
    while (index >= n_);
    return index;
  }

 private:
  std::uint64_t scramble(std::uint64_t x) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = x >> half_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = left ^ (derive_key(key_, round, right) & mask);
      left = right;
      right = mixed;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t n_, key_;
  int half_bits_ = 1;
};

}  // namespace kintsugi
