#include "data/tokenizer_training/merge_learner.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr std::int32_t kBoundary = -1, kInside = -2;
constexpr std::uint64_t kNoKey = ~std::uint64_t{0};
constexpr std::size_t kPrefetchDistance = 12;

}  // namespace

MergeLearner::MergeLearner(std::span<const PreTokenCount> pre_tokens,
                           std::span<const std::int32_t> byte_ids, std::int64_t min_frequency)
    : min_frequency_(std::max<std::int64_t>(min_frequency, 1)),
      first_byte_(*std::min_element(byte_ids.begin(), byte_ids.end())),
      lengths_(static_cast<std::size_t>(first_byte_) + 256, 1) {
  fill_slots(pre_tokens, byte_ids);
  count_byte_pairs();
}

void MergeLearner::fill_slots(std::span<const PreTokenCount> pre_tokens,
                              std::span<const std::int32_t> byte_ids) {
  std::uint64_t slots = 1;
  for (const PreTokenCount& pre_token : pre_tokens) slots += pre_token.text.size() + 1;
  if (slots > std::numeric_limits<std::uint32_t>::max())
    user_error(
        "the distinct pre-tokens of the corpus take {}, too much to train a tokenizer; train it on "
        "a sample (--sample-bytes)",
        format_bytes(static_cast<double>(slots)));
  slots_.reserve(slots);
  counts_.reserve(pre_tokens.size());
  slots_.push_back({kBoundary, 0});
  for (const PreTokenCount& pre_token : pre_tokens) {
    const auto number = static_cast<std::uint32_t>(counts_.size());
    for (const char letter : pre_token.text)
      slots_.push_back({byte_ids[static_cast<unsigned char>(letter)], number});
    slots_.push_back({kBoundary, number});
    counts_.push_back(pre_token.count);
    corpus_bytes_ += pre_token.count * static_cast<std::int64_t>(pre_token.text.size());
  }
  corpus_tokens_ = corpus_bytes_;
}

void MergeLearner::count_byte_pairs() {
  std::vector<Pair> found(256 * 256);
  std::vector<std::uint32_t> positions(found.size());
  const auto each_pair = [&](const auto& action) {
    for (std::size_t position = 1; position + 1 < slots_.size(); ++position) {
      const std::int32_t left = slots_[position].token, right = slots_[position + 1].token;
      if (left == kBoundary || right == kBoundary) continue;
      action(static_cast<std::size_t>((left - first_byte_) * 256 + right - first_byte_), position);
    }
  };
  each_pair([&](std::size_t pair, std::size_t position) {
    found[pair].count += counts_[slots_[position].pre_token];
    ++positions[pair];
  });
  for (std::size_t pair = 0; pair < found.size(); ++pair)
    if (found[pair].count >= min_frequency_) found[pair].positions.reserve(positions[pair]);
  each_pair([&](std::size_t pair, std::size_t position) {
    if (found[pair].count >= min_frequency_)
      found[pair].positions.push_back(static_cast<std::uint32_t>(position));
  });
  for (std::int32_t left = 0; left < 256; ++left)
    for (std::int32_t right = 0; right < 256; ++right) {
      Pair& pair = found[static_cast<std::size_t>(left * 256 + right)];
      introduce(key(first_byte_ + left, first_byte_ + right), pair.count, pair.positions);
      pair.positions = Positions();
    }
}

std::optional<TrainedBpe::Merge> MergeLearner::best() {
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    const std::int64_t count = pairs_[top.pair].count;
    if (count == top.count)  // it stays in the heap; once merged or forgotten its count is 0
      return TrainedBpe::Merge{static_cast<std::int32_t>(top.key >> 32),
                               static_cast<std::int32_t>(top.key & 0xFFFFFFFF)};
    std::pop_heap(heap_.begin(), heap_.end());
    if (count == 0) {
      heap_.pop_back();
    } else {
      heap_.back().count = count;
      std::push_heap(heap_.begin(), heap_.end());
    }
  }
  return std::nullopt;
}

void MergeLearner::forget(TrainedBpe::Merge pair) {
  const auto found = index_.find(key(pair.left, pair.right));
  KINTSUGI_CHECK(found, "no pair {} {}", pair.left, pair.right);
  retire(pairs_[*found]);
}

void MergeLearner::merge(TrainedBpe::Merge pair, std::int32_t token) {
  const auto found = index_.find(key(pair.left, pair.right));
  KINTSUGI_CHECK(found && pairs_[*found].count > 0, "no pair {} {}", pair.left, pair.right);
  KINTSUGI_CHECK(static_cast<std::size_t>(token) >= lengths_.size(), "token {} exists", token);
  const auto left = static_cast<std::size_t>(pair.left),
             right = static_cast<std::size_t>(pair.right);
  lengths_.resize(static_cast<std::size_t>(token) + 1);
  lengths_.back() = lengths_[left] + lengths_[right];

  const Positions positions = std::move(pairs_[*found].positions);
  retire(pairs_[*found]);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (i + kPrefetchDistance < positions.size())
      __builtin_prefetch(&slots_[positions[i + kPrefetchDistance]], 1);
    const std::uint32_t position = positions[i];
    if (slots_[position].token == pair.left &&
        slots_[position + lengths_[left]].token == pair.right)
      merge_at(position, pair, token);
  }
  for (const auto& seen : lefts_.seen()) {
    reduce(key(seen.token, pair.left), seen.count);
    introduce(key(seen.token, token), seen.count, seen.positions);
  }
  for (const auto& seen : rights_.seen()) {
    reduce(key(pair.right, seen.token), seen.count);
    introduce(key(token, seen.token), seen.count, seen.positions);
  }
  for (const auto& seen : repeats_.seen()) {
    reduce(key(pair.right, pair.left), seen.count);
    introduce(key(token, token), seen.count, seen.positions);
  }
  lefts_.clear();
  rights_.clear();
  repeats_.clear();
}

// Merges the pair that starts at `position` and records its neighbours: (left neighbour, pair.left)
// becomes (left neighbour, token), and (pair.right, right neighbour) becomes (token, right
// neighbour). If the same pair follows directly, the next call finds `token` on its left and
// records the two adjacent tokens as a repeat.
void MergeLearner::merge_at(std::uint32_t position, TrainedBpe::Merge pair, std::int32_t token) {
  const std::uint32_t second = position + lengths_[static_cast<std::size_t>(pair.left)];
  const std::uint32_t after = second + lengths_[static_cast<std::size_t>(pair.right)];
  const std::int64_t count = counts_[slots_[position].pre_token];
  const std::int32_t left = slots_[position - 1].token, right = slots_[after].token;

  if (left != kBoundary)
    (left == token ? repeats_ : lefts_)
        .add(left, count, position - lengths_[static_cast<std::size_t>(left)]);
  if (right != kBoundary) {
    const bool same_follows =
        right == pair.left && slots_[after + (second - position)].token == pair.right;
    if (!same_follows) rights_.add(right, count, position);
  }
  slots_[second - 1].token = kInside;
  slots_[second].token = kInside;
  slots_[position].token = token;
  slots_[after - 1].token = token;
  corpus_tokens_ -= count;
}

void MergeLearner::introduce(Key key, std::int64_t count, const Positions& positions) {
  if (count < min_frequency_) return;
  const auto number = static_cast<std::uint32_t>(pairs_.size());
  pairs_.push_back({count, Positions(positions.begin(), positions.end())});
  index_.insert(key, number);
  heap_.push_back({count, key, number});
  std::push_heap(heap_.begin(), heap_.end());
}

void MergeLearner::reduce(Key key, std::int64_t count) {
  const auto found = index_.find(key);
  if (!found) return;
  Pair& pair = pairs_[*found];
  if (pair.count == 0) return;
  pair.count -= count;
  KINTSUGI_CHECK(pair.count >= 0, "pair {:x} counted {} times", key, pair.count);
  if (pair.count < min_frequency_) retire(pair);
}

void MergeLearner::retire(Pair& pair) {
  pair.count = 0;
  pair.positions = Positions();
}

// ---- by pair

MergeLearner::PairIndex::PairIndex() : entries_(std::size_t{1} << 17, Entry{kNoKey, 0}) {}

std::size_t MergeLearner::PairIndex::slot_of(Key key) const {
  const std::size_t mask = entries_.size() - 1;
  std::uint64_t hash = key * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  std::size_t position = hash & mask;
  while (entries_[position].key != key && entries_[position].key != kNoKey)
    position = (position + 1) & mask;
  return position;
}

std::optional<std::uint32_t> MergeLearner::PairIndex::find(Key key) const {
  const Entry& entry = entries_[slot_of(key)];
  if (entry.key == kNoKey) return std::nullopt;
  return entry.pair;
}

void MergeLearner::PairIndex::insert(Key key, std::uint32_t pair) {
  if (2 * ++used_ > entries_.size()) {
    const std::vector<Entry> old = std::move(entries_);
    entries_.assign(2 * old.size(), Entry{kNoKey, 0});
    for (const Entry& entry : old)
      if (entry.key != kNoKey) entries_[slot_of(entry.key)] = entry;
  }
  entries_[slot_of(key)] = {key, pair};
}

// ---- by neighbour

void MergeLearner::Neighbours::add(std::int32_t token, std::int64_t count, std::uint32_t position) {
  const auto id = static_cast<std::size_t>(token);
  if (id >= index_.size()) index_.resize(2 * id + 1, -1);
  if (index_[id] < 0) {
    index_[id] = static_cast<std::int32_t>(used_);
    if (used_ == seen_.size()) seen_.emplace_back();
    seen_[used_].token = token;
    seen_[used_].count = 0;
    ++used_;
  }
  Seen& seen = seen_[static_cast<std::size_t>(index_[id])];
  seen.count += count;
  seen.positions.push_back(position);
}

void MergeLearner::Neighbours::clear() {
  for (Seen& seen : this->seen()) {
    index_[static_cast<std::size_t>(seen.token)] = -1;
    seen.positions.clear();
  }
  used_ = 0;
}

}  // namespace kintsugi
