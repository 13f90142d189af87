#include "data/tokenizers/bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

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

constexpr std::size_t kShort = 40;  // symbols; measured on English and on repeated letters
constexpr std::size_t kMedium = 1 << 13;
constexpr std::size_t kCacheEntries = 1 << 15;  // 2 MiB per thread

// The first or the last character. An invalid byte gets a code above all characters.
char32_t first_character(std::string_view text) {
  std::size_t length;
  return utf8_character_length(text) == 0 ? 0x110000 + static_cast<unsigned char>(text.front())
                                          : utf8_decode(text, 0, length);
}

char32_t last_character(std::string_view text) {
  const std::size_t length = utf8_last_character_length(text);
  return length == 0 ? 0x110000 + static_cast<unsigned char>(text.back())
                     : first_character(text.substr(text.size() - length));
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

BpeModel::BpeModel(Vocabulary vocabulary, const std::vector<MergeRule>& merges,
                   const Options& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  merges_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank)
    merges_.set(merges[rank].left, merges[rank].right,
                {static_cast<std::int32_t>(rank), merges[rank].merged});
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_[static_cast<std::size_t>(byte)] =
        options.byte_level      ? id_of(std::string(1, static_cast<char>(byte)))
        : options.byte_fallback ? id_of(fmt::format("<0x{:02X}>", byte))
                                : -1;
  every_byte_ = std::none_of(byte_ids_.begin(), byte_ids_.end(), [](auto id) { return id < 0; });
  if (options.byte_level) return;
  for (const auto& [token, id] : vocabulary_)
    if (!token.empty() && utf8_character_length(token) == token.size())
      letters_.emplace(first_character(token), id);
  find_junctions(merges);
}

std::int32_t BpeModel::id_of(const std::string& token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? -1 : found->second;
}

// Without a pre-tokenizer the whole text is one pre-token, but no merge of a usual vocabulary
// crosses the start of a word. Splitting there gives the same ids and makes the cache effective.
void BpeModel::find_junctions(const std::vector<MergeRule>& merges) {
  if (!every_byte_ || options_.ignore_merges) return;
  std::unordered_map<std::int32_t, std::string_view> tokens;
  for (const auto& [token, id] : vocabulary_) tokens[id] = token;
  for (const MergeRule& merge : merges) {
    for (const std::int32_t id : {merge.left, merge.right})
      if (std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end()) return;
    const std::string_view left = tokens[merge.left], right = tokens[merge.right];
    if (left.empty() || right.empty()) return;
    std::vector<char32_t>& followers = junctions_[last_character(left)];
    const char32_t first = first_character(right);
    if (std::find(followers.begin(), followers.end(), first) == followers.end())
      followers.push_back(first);
  }
  for (auto& [letter, followers] : junctions_) std::sort(followers.begin(), followers.end());
  splittable_ = true;
}

std::size_t BpeModel::first_segment(std::string_view pre_token) const {
  char32_t previous = 0;
  for (std::size_t at = 0; at < pre_token.size();) {
    const std::size_t length =
        std::max<std::size_t>(1, utf8_character_length(pre_token.substr(at)));
    const char32_t letter = first_character(pre_token.substr(at, length));
    if (at > 0) {
      const auto followers = junctions_.find(previous);
      if (followers == junctions_.end() ||
          !std::binary_search(followers->second.begin(), followers->second.end(), letter))
        return at;
    }
    previous = letter;
    at += length;
  }
  return pre_token.size();
}

void BpeModel::symbols_of(std::string_view pre_token, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  if (options_.byte_level && every_byte_) {
    symbols.resize(pre_token.size());
    for (std::size_t i = 0; i < pre_token.size(); ++i)
      symbols[i] = byte_ids_[static_cast<unsigned char>(pre_token[i])];
    return;
  }
  bool unknown = false;  // an unknown token is pending
  const auto known = [&](std::int32_t id) {
    if (unknown) symbols.push_back(options_.unknown);
    unknown = false;
    symbols.push_back(id);
  };
  for (std::size_t at = 0; at < pre_token.size();) {
    const std::size_t whole = options_.byte_level ? 1 : utf8_character_length(pre_token.substr(at));
    const std::string_view letter = pre_token.substr(at, std::max<std::size_t>(1, whole));
    at += letter.size();
    const auto byte_id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    const auto found =
        options_.byte_level || whole == 0 ? letters_.end() : letters_.find(first_character(letter));
    if (found != letters_.end()) {
      known(found->second);
    } else if (options_.byte_level && byte_id(letter[0]) >= 0) {
      known(byte_id(letter[0]));
    } else if (options_.byte_fallback &&
               std::all_of(letter.begin(), letter.end(), [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : letter) symbols.push_back(byte_id(c));
    } else if (options_.unknown >= 0) {
      if (unknown && !options_.fuse_unknown) symbols.push_back(options_.unknown);
      unknown = true;
    }
  }
  if (unknown) symbols.push_back(options_.unknown);
}

BpeEncoder::BpeEncoder(std::shared_ptr<const BpeModel> model)
    : model_(std::move(model)), cache_(kCacheEntries) {}

std::array<std::uint64_t, 4> BpeEncoder::key_of(std::string_view pre_token) {
  const auto word = [&](std::size_t at) {
    std::uint64_t value;
    std::memcpy(&value, pre_token.data() + at, 8);
    return value;
  };
  const auto half = [&](std::size_t at) {
    std::uint32_t value;
    std::memcpy(&value, pre_token.data() + at, 4);
    return static_cast<std::uint64_t>(value);
  };
  const std::size_t n = pre_token.size();
  if (n > 16) return {word(0), word(8), word(n - 16), word(n - 8)};
  if (n >= 8) return {word(0), word(n - 8), 0, 0};
  if (n >= 4) return {half(0), half(n - 4), 0, 0};
  const auto byte = [&](std::size_t at) {
    return static_cast<std::uint64_t>(static_cast<unsigned char>(pre_token[at]));
  };
  return {byte(0) | byte(n / 2) << 8 | byte(n - 1) << 16, 0, 0, 0};
}

void BpeEncoder::encode_segment(std::string_view pre_token, std::vector<std::int32_t>& ids) {
  if (pre_token.size() > kLongestKey || pre_token.empty()) return encode_uncached(pre_token, ids);
  const std::array<std::uint64_t, 4> key = key_of(pre_token);
  std::uint64_t hash = (key[0] ^ pre_token.size()) * 0x9E3779B97F4A7C15ull;
  hash = (hash ^ hash >> 32 ^ key[1]) * 0xD6E8FEB86659FD93ull;
  if (pre_token.size() > 16)
    hash = (hash ^ hash >> 32 ^ key[2] * 31 ^ key[3]) * 0x9E3779B97F4A7C15ull;
  Entry& entry = cache_[hash >> 49];
  static_assert(kCacheEntries == 1 << 15);
  if (entry.length == static_cast<std::int16_t>(pre_token.size()) && entry.key == key) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t before = ids.size();
  encode_uncached(pre_token, ids);
  const std::size_t count = ids.size() - before;
  if (count > kMostIds) return;
  entry.key = key;
  entry.length = static_cast<std::int16_t>(pre_token.size());
  entry.count = static_cast<std::int16_t>(count);
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
}

void BpeEncoder::encode_in_segments(std::string_view pre_token, std::vector<std::int32_t>& ids) {
  while (!pre_token.empty()) {
    const std::size_t length = model_->first_segment(pre_token);
    encode_segment(pre_token.substr(0, length), ids);
    pre_token.remove_prefix(length);
  }
}

void BpeEncoder::encode_uncached(std::string_view pre_token, std::vector<std::int32_t>& ids) {
  if (model_->ignore_merges()) {
    const auto found = model_->vocabulary().find(std::string(pre_token));
    if (found != model_->vocabulary().end()) return ids.push_back(found->second);
  }
  model_->symbols_of(pre_token, symbols_);
  if (symbols_.size() <= kShort)
    merge_short(model_->merges(), symbols_);
  else if (symbols_.size() <= kMedium)
    merge_with_heap(model_->merges(), symbols_);
  else
    merge_by_rank(model_->merges(), symbols_);
  ids.insert(ids.end(), symbols_.begin(), symbols_.end());
}

}  // namespace kintsugi
