#include "data/tokenizer_training/pre_token_counts.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {

PreTokenCounts::PreTokenCounts() : short_(1024), long_index_(1024) {}

std::uint64_t PreTokenCounts::hash(std::string_view pre_token) { return hash64(pre_token); }

void PreTokenCounts::add(std::string_view pre_token, std::int64_t count, std::uint64_t hash) {
  if (pre_token.empty()) return;
  if (pre_token.size() <= kShort)
    add_short(pre_token, count, hash);
  else
    add_long(pre_token, count, hash);
}

void PreTokenCounts::add_short(std::string_view pre_token, std::int64_t count, std::uint64_t hash) {
  Short entry_to_add;
  std::memcpy(entry_to_add.bytes, pre_token.data(), pre_token.size());
  const auto length = static_cast<std::uint32_t>(pre_token.size());
  const std::size_t mask = short_.size() - 1;
  std::size_t at = hash & mask;
  for (; short_[at].length != 0; at = (at + 1) & mask) {
    Short& entry = short_[at];
    if (entry.length == length && std::memcmp(entry.bytes, entry_to_add.bytes, kShort) == 0) {
      entry.count += count;
      return;
    }
  }
  entry_to_add.length = length;
  entry_to_add.count = count;
  short_[at] = entry_to_add;
  if (2 * ++short_used_ > short_.size()) grow_short();
}

void PreTokenCounts::add_long(std::string_view text, std::int64_t count, std::uint64_t hash) {
  const std::size_t mask = long_index_.size() - 1;
  std::size_t at = hash & mask;
  for (; long_index_[at] != 0; at = (at + 1) & mask) {
    Long& entry = long_[long_index_[at] - 1];
    if (entry.hash == hash && pre_token(entry) == text) {
      entry.count += count;
      return;
    }
  }
  if (long_.size() + 1 >= std::numeric_limits<std::uint32_t>::max())
    user_error(
        "the corpus has more than four billion distinct long pre-tokens; train on a sample "
        "(--sample-bytes)");
  long_.push_back({hash, text_.size(), text.size(), count});
  text_.insert(text_.end(), text.begin(), text.end());
  long_index_[at] = static_cast<std::uint32_t>(long_.size());
  if (2 * long_.size() > long_index_.size()) grow_long();
}

void PreTokenCounts::grow_short() {
  std::vector<Short> old(2 * short_.size());
  old.swap(short_);
  const std::size_t mask = short_.size() - 1;
  for (const Short& entry : old) {
    if (entry.length == 0) continue;
    std::size_t at = hash({entry.bytes, entry.length}) & mask;
    while (short_[at].length != 0) at = (at + 1) & mask;
    short_[at] = entry;
  }
}

void PreTokenCounts::grow_long() {
  long_index_.assign(2 * long_index_.size(), 0);
  const std::size_t mask = long_index_.size() - 1;
  for (std::size_t i = 0; i < long_.size(); ++i) {
    std::size_t at = long_[i].hash & mask;
    while (long_index_[at] != 0) at = (at + 1) & mask;
    long_index_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

void PreTokenCounts::clear() {
  std::fill(short_.begin(), short_.end(), Short{});
  std::fill(long_index_.begin(), long_index_.end(), 0);
  short_used_ = 0;
  long_.clear();
  text_.clear();
}

}  // namespace kintsugi
