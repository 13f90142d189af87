#pragma once

#include <cstdint>
#include <vector>

namespace kintsugi {

// Hash table (left id, right id) -> merged id and rank; usually one probe.
class MergeTable {
 public:
  struct Merge {
    std::int32_t rank, id;  // the lowest rank is merged first
  };
  static constexpr std::int32_t kNever = 0x7FFFFFFF;

  void reserve(std::size_t merges);
  void set(std::int32_t left, std::int32_t right, Merge merge);  // overwrites an earlier entry
  std::size_t ranks() const { return ranks_; }                   // the highest rank + 1
  Merge find(std::int32_t left, std::int32_t right) const {
    if (slots_.empty()) return {kNever, -1};
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = start_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kFree) return {kNever, -1};
    }
  }

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge{};
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t start_of(std::uint64_t key) const {
    return static_cast<std::size_t>(key * 0x9E3779B97F4A7C15ull >> shift_);
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0, ranks_ = 0;
  int shift_ = 63;
};

// Merge symbols in place: the lowest rank first, of equal ranks the leftmost first. All three give
// the same result. merge_short is quadratic and fast for words; the others take O(n log n).
void merge_short(const MergeTable& merges, std::vector<std::int32_t>& symbols);  // at most 64
void merge_with_heap(const MergeTable& merges, std::vector<std::int32_t>& symbols);
// Processes all positions of a rank together, in memory order: several times faster than a heap for
// millions of symbols.
void merge_by_rank(const MergeTable& merges, std::vector<std::int32_t>& symbols);

}  // namespace kintsugi
