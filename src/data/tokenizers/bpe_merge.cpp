#include "data/tokenizers/bpe_merge.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "core/error.h"

namespace kintsugi {
namespace {

using Merge = MergeTable::Merge;

// A linked list of symbols; each has the merge of itself and its successor.
class SymbolList {
 public:
  SymbolList(const MergeTable& merges, const std::vector<std::int32_t>& symbols)
      : merges_(merges), nodes_(symbols.size()) {
    const auto count = static_cast<std::int32_t>(symbols.size());
    for (std::int32_t i = 0; i < count; ++i)
      node(i) = {symbols[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1, {}};
    for (std::int32_t i = 0; i < count; ++i) update_merge(i);
  }

  std::int32_t size() const { return static_cast<std::int32_t>(nodes_.size()); }
  std::int32_t rank(std::int32_t at) const {
    return nodes_[static_cast<std::size_t>(at)].merge.rank;
  }

  // Merges a symbol with its successor. Calls changed(position) for each new pair.
  template <class Changed>
  void merge(std::int32_t at, Changed&& changed) {
    Node& left = node(at);
    Node& right = node(left.next);
    left.id = left.merge.id;
    left.next = right.next;
    right.merge.rank = kMergedAway;
    if (left.next >= 0) node(left.next).previous = at;
    update_merge(at);
    if (left.merge.rank != MergeTable::kNever) changed(at);
    if (left.previous < 0) return;
    update_merge(left.previous);
    if (rank(left.previous) != MergeTable::kNever) changed(left.previous);
  }

  void copy_to(std::vector<std::int32_t>& symbols) const {
    std::size_t kept = 0;
    for (std::int32_t at = 0; at >= 0; at = nodes_[static_cast<std::size_t>(at)].next)
      symbols[kept++] = nodes_[static_cast<std::size_t>(at)].id;
    symbols.resize(kept);
  }

 private:
  static constexpr std::int32_t kMergedAway = -1;  // merged into its predecessor
  struct Node {
    std::int32_t id, previous, next;
    Merge merge;
  };
  Node& node(std::int32_t at) { return nodes_[static_cast<std::size_t>(at)]; }
  void update_merge(std::int32_t at) {
    Node& left = node(at);
    left.merge =
        left.next < 0 ? Merge{MergeTable::kNever, -1} : merges_.find(left.id, node(left.next).id);
  }

  const MergeTable& merges_;
  std::vector<Node> nodes_;
};

void check_length(const std::vector<std::int32_t>& symbols) {
  KINTSUGI_CHECK(symbols.size() < 0x7FFFFFFF, "a pre-token of {} symbols is too long",
                 symbols.size());
}

}  // namespace

void MergeTable::reserve(std::size_t merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2 * merges, 16));
  slots_.assign(size, {});
  shift_ = 64 - std::countr_zero(size);
  used_ = ranks_ = 0;
}

void MergeTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  KINTSUGI_CHECK(used_ + 1 < slots_.size(), "the merge table is full at {}", used_);
  const std::uint64_t key = key_of(left, right);
  std::size_t i = start_of(key);
  while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
  used_ += slots_[i].key == kFree ? 1 : 0;
  slots_[i] = {key, merge};
  ranks_ = std::max(ranks_, static_cast<std::size_t>(merge.rank) + 1);
}

void merge_short(const MergeTable& merges, std::vector<std::int32_t>& symbols) {
  std::size_t count = symbols.size();
  if (count < 2) return;
  KINTSUGI_CHECK(count <= 64, "{} symbols are too many for merge_short", count);
  std::array<Merge, 64> next;  // the merge of each symbol and its successor
  for (std::size_t i = 0; i + 1 < count; ++i) next[i] = merges.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (next[i].rank < next[best].rank) best = i;
    if (next[best].rank == MergeTable::kNever) break;
    symbols[best] = next[best].id;
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      next[i] = next[i + 1];
    }
    --count;
    if (best + 1 < count) next[best] = merges.find(symbols[best], symbols[best + 1]);
    if (best > 0) next[best - 1] = merges.find(symbols[best - 1], symbols[best]);
  }
  symbols.resize(count);
}

void merge_with_heap(const MergeTable& merges, std::vector<std::int32_t>& symbols) {
  check_length(symbols);
  if (symbols.size() < 2) return;
  SymbolList list(merges, symbols);
  std::vector<std::uint64_t> heap;  // rank, position; stale entries are skipped
  const auto add = [&](std::int32_t at) {
    heap.push_back(static_cast<std::uint64_t>(list.rank(at)) << 32 |
                   static_cast<std::uint64_t>(at));
  };
  for (std::int32_t at = 0; at < list.size(); ++at)
    if (list.rank(at) != MergeTable::kNever) add(at);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<std::int32_t>(heap.back() >> 32);
    const auto at = static_cast<std::int32_t>(heap.back() & 0xFFFFFFFF);
    heap.pop_back();
    if (list.rank(at) != rank) continue;
    list.merge(at, [&](std::int32_t changed) {
      add(changed);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    });
  }
  list.copy_to(symbols);
}

void merge_by_rank(const MergeTable& merges, std::vector<std::int32_t>& symbols) {
  check_length(symbols);
  if (symbols.size() < 2) return;
  SymbolList list(merges, symbols);
  std::vector<std::vector<std::int32_t>> positions(merges.ranks());
  for (std::int32_t at = 0; at < list.size(); ++at)
    if (list.rank(at) != MergeTable::kNever)
      positions[static_cast<std::size_t>(list.rank(at))].push_back(at);
  // Learned merges never create a pair of a lower rank. If a vocabulary does, start again with the
  // symbols merged so far.
  bool lower = false;
  for (std::size_t rank = 0; rank < positions.size() && !lower; ++rank) {
    std::vector<std::int32_t> now = std::move(positions[rank]);
    std::sort(now.begin(), now.end());
    for (const std::int32_t at : now) {
      if (list.rank(at) != static_cast<std::int32_t>(rank)) continue;
      list.merge(at, [&](std::int32_t changed) {
        const auto next = static_cast<std::size_t>(list.rank(changed));
        lower = lower || next <= rank;
        if (!lower) positions[next].push_back(changed);
      });
      if (lower) break;
    }
  }
  list.copy_to(symbols);
  if (lower) merge_with_heap(merges, symbols);
}

}  // namespace kintsugi
