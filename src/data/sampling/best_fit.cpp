#include "data/sampling/best_fit.h"

#include <bit>
#include <limits>
#include <optional>

#include "core/error.h"

namespace kintsugi {
namespace {

// A set of numbers 0 … limit: bits, and for each 64 words of bits a word that says which of them
// are not zero, and so on.
class NumberSet {
 public:
  explicit NumberSet(std::uint32_t limit) {
    for (std::size_t size = std::size_t{limit} + 1;; size = words(size)) {
      levels_.emplace_back(words(size), 0);
      if (words(size) == 1) break;
    }
  }
  void insert(std::size_t number) {
    for (auto& level : levels_) {
      level[number / 64] |= bit(number);
      number /= 64;
    }
  }
  void erase(std::size_t number) {
    for (auto& level : levels_) {
      level[number / 64] &= ~bit(number);
      if (level[number / 64] != 0) return;
      number /= 64;
    }
  }
  // The smallest number that is not below this one.
  std::optional<std::uint32_t> next(std::size_t number) const {
    for (std::size_t at = 0; at < levels_.size(); ++at) {
      if (number / 64 >= levels_[at].size()) return std::nullopt;
      const std::uint64_t rest = levels_[at][number / 64] & ~(bit(number) - 1);
      if (rest != 0) return smallest_below(at, number / 64 * 64 + lowest(rest));
      number = number / 64 + 1;
    }
    return std::nullopt;
  }

 private:
  static std::size_t words(std::size_t bits) { return (bits + 63) / 64; }
  static std::uint64_t bit(std::size_t number) { return std::uint64_t{1} << (number % 64); }
  static std::size_t lowest(std::uint64_t word) {
    return static_cast<std::size_t>(std::countr_zero(word));
  }
  std::uint32_t smallest_below(std::size_t level, std::size_t number) const {
    for (; level > 0; --level) number = number * 64 + lowest(levels_[level - 1][number]);
    return static_cast<std::uint32_t>(number);
  }

  std::vector<std::vector<std::uint64_t>> levels_;
};

// The bins that are not full, by their room: for each room a queue of bins.
class OpenBins {
 public:
  explicit OpenBins(std::uint32_t capacity)
      : rooms_(capacity), oldest_(capacity + 1, kNone), newest_(capacity + 1, kNone) {}

  // Puts an item into the bin with the least room that is enough. Returns the bin.
  std::uint32_t place(std::uint32_t size, std::uint32_t capacity) {
    std::uint32_t room = capacity, bin;
    if (const auto found = rooms_.next(size)) {
      room = *found;
      bin = oldest_[room];
      oldest_[room] = next_[bin];
      if (oldest_[room] == kNone) rooms_.erase(room);
    } else {
      bin = static_cast<std::uint32_t>(next_.size());
      next_.push_back(kNone);
    }
    if (room > size) add(bin, room - size);
    return bin;
  }
  std::size_t bins() const { return next_.size(); }

 private:
  void add(std::uint32_t bin, std::uint32_t room) {
    next_[bin] = kNone;
    (oldest_[room] == kNone ? oldest_[room] : next_[newest_[room]]) = bin;
    newest_[room] = bin;
    rooms_.insert(room);
  }

  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  NumberSet rooms_;                             // the rooms that some bin has
  std::vector<std::uint32_t> oldest_, newest_;  // of each room: the ends of its queue
  std::vector<std::uint32_t> next_;             // of each bin: the one behind it in its queue
};

// The items in the order of their keys; equal keys keep the order of the items.
std::vector<std::uint32_t> sorted_by(std::span<const std::uint32_t> keys, std::size_t limit,
                                     std::vector<std::uint32_t>& ends) {
  ends.assign(limit + 1, 0);
  for (const std::uint32_t key : keys) ++ends[key];
  std::uint32_t sum = 0;
  for (std::uint32_t& end : ends) sum += std::exchange(end, sum);
  std::vector<std::uint32_t> items(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    items[ends[keys[i]]++] = static_cast<std::uint32_t>(i);
  return items;
}

}  // namespace

Bins best_fit_decreasing(std::span<const std::uint32_t> sizes, std::uint32_t capacity) {
  std::vector<std::uint32_t> smaller(sizes.size());  // capacity - size: the largest item first
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    KINTSUGI_CHECK(sizes[i] > 0 && sizes[i] <= capacity, "an item of {} in bins of {}", sizes[i],
                   capacity);
    smaller[i] = capacity - sizes[i];
  }
  if (sizes.empty()) return {};
  Bins bins;
  const std::vector<std::uint32_t> placed = sorted_by(smaller, capacity, bins.ends);
  OpenBins open(capacity);
  std::vector<std::uint32_t> bin_of(sizes.size());  // of the items in the order of placement
  for (std::size_t i = 0; i < placed.size(); ++i)
    bin_of[i] = open.place(sizes[placed[i]], capacity);
  bins.items = sorted_by(bin_of, open.bins() - 1, bins.ends);
  for (std::uint32_t& item : bins.items) item = placed[item];
  return bins;
}

}  // namespace kintsugi
