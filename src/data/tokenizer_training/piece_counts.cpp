#include "data/tokenizer_training/piece_counts.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {

PieceCounts::PieceCounts() : short_(1024), long_index_(1024) {}

std::uint64_t PieceCounts::hash(std::string_view piece) { return hash64(piece); }

void PieceCounts::add(std::string_view piece, std::int64_t count, std::uint64_t hash) {
  if (piece.empty()) return;
  if (piece.size() <= kShort)
    add_short(piece, count, hash);
  else
    add_long(piece, count, hash);
}

void PieceCounts::add_short(std::string_view piece, std::int64_t count, std::uint64_t hash) {
  Short wanted;
  std::memcpy(wanted.bytes, piece.data(), piece.size());
  const auto length = static_cast<std::uint32_t>(piece.size());
  const std::size_t mask = short_.size() - 1;
  std::size_t at = hash & mask;
  for (; short_[at].length != 0; at = (at + 1) & mask) {
    Short& entry = short_[at];
    if (entry.length == length && std::memcmp(entry.bytes, wanted.bytes, kShort) == 0) {
      entry.count += count;
      return;
    }
  }
  wanted.length = length;
  wanted.count = count;
  short_[at] = wanted;
  if (2 * ++short_used_ > short_.size()) grow_short();
}

void PieceCounts::add_long(std::string_view text, std::int64_t count, std::uint64_t hash) {
  const std::size_t mask = long_index_.size() - 1;
  std::size_t at = hash & mask;
  for (; long_index_[at] != 0; at = (at + 1) & mask) {
    Long& entry = long_[long_index_[at] - 1];
    if (entry.hash == hash && piece(entry) == text) {
      entry.count += count;
      return;
    }
  }
  if (long_.size() + 1 >= std::numeric_limits<std::uint32_t>::max())
    user_error(
        "the corpus has more than four thousand million long pieces; train on a part "
        "(--sample-bytes)");
  long_.push_back({hash, text_.size(), text.size(), count});
  text_.insert(text_.end(), text.begin(), text.end());
  long_index_[at] = static_cast<std::uint32_t>(long_.size());
  if (2 * long_.size() > long_index_.size()) grow_long();
}

void PieceCounts::grow_short() {
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

void PieceCounts::grow_long() {
  long_index_.assign(2 * long_index_.size(), 0);
  const std::size_t mask = long_index_.size() - 1;
  for (std::size_t i = 0; i < long_.size(); ++i) {
    std::size_t at = long_[i].hash & mask;
    while (long_index_[at] != 0) at = (at + 1) & mask;
    long_index_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

void PieceCounts::clear() {
  std::fill(short_.begin(), short_.end(), Short{});
  std::fill(long_index_.begin(), long_index_.end(), 0);
  short_used_ = 0;
  long_.clear();
  text_.clear();
}

}  // namespace kintsugi
