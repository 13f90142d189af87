#include "data/tokenizers/bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "data/tokenizers/utf8.h"

namespace kintsugi {
namespace {

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
  std::size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 &&
         (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80)
    --begin;
  if (utf8_character_length(text.substr(begin)) != text.size() - begin)
    return 0x110000 + static_cast<unsigned char>(text.back());
  return first_character(text.substr(begin));
}

}  // namespace

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
