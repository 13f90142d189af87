#include "data/sampling/token_stream.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

TokenStream::TokenStream(std::vector<TokenRange> parts) {
  std::int64_t end = 0;
  for (const TokenRange& part : parts) {
    if (part.count == 0) continue;
    parts_.push_back(part);
    ends_.push_back(end += part.count);
  }
}

void TokenStream::locate(std::int64_t first, std::int64_t count,
                         std::vector<TokenRange>& ranges) const {
  KINTSUGI_CHECK(first >= 0 && count >= 0 && first + count <= tokens(), "tokens {} + {} of {}",
                 first, count, tokens());
  auto part =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
  for (; count > 0; ++part) {
    const std::int64_t left = ends_[part] - first;
    const std::int64_t taken = std::min(count, left);
    const TokenRange& whole = parts_[part];
    ranges.push_back({whole.shard, whole.first + whole.count - left, taken});
    first += taken;
    count -= taken;
  }
}

void add_parts(const TokenStream& stream, StreamHash& hash) {
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  const TokenShard* last = nullptr;
  std::uint64_t fingerprint = 0;
  for (const TokenRange& part : stream.parts()) {
    if (part.shard != last) fingerprint = part.shard->fingerprint();
    last = part.shard;
    add(fingerprint);
    add(part.first);
    add(part.count);
  }
}

HeldOut hold_out(const std::vector<TokenShard>& shards, double valid_fraction) {
  const auto fraction_of = [&](std::int64_t count) {
    return static_cast<std::int64_t>(static_cast<double>(count) * valid_fraction);
  };
  std::vector<TokenRange> train, valid;
  for (const TokenShard& shard : shards) {
    const std::int64_t documents = fraction_of(shard.documents());
    const std::int64_t train_end = documents > 0
                                       ? shard.document_begin(shard.documents() - documents)
                                       : shard.tokens() - fraction_of(shard.tokens());
    train.push_back({&shard, 0, train_end});
    valid.push_back({&shard, train_end, shard.tokens() - train_end});
  }
  return {TokenStream(std::move(train)), TokenStream(std::move(valid))};
}

HeldOut hold_out_examples(const std::vector<TokenShard>& shards, double valid_fraction) {
  constexpr std::int64_t kMostRanges = 512;
  std::vector<TokenRange> train, valid;
  for (const TokenShard& shard : shards) {
    const std::int64_t all = shard.documents();
    auto held = static_cast<std::int64_t>(static_cast<double>(all) * valid_fraction);
    if (held == 0 && valid_fraction > 0 && all > 1) held = 1;
    std::int64_t document = 0;
    const auto add = [&](std::vector<TokenRange>& to, std::int64_t end) {
      const std::int64_t first = shard.document_begin(document);
      to.push_back({&shard, first, shard.document_begin(end) - first});
      document = end;
    };
    // The documents in `ranges` equal parts: of each, the last ones are held out.
    const std::int64_t ranges = std::min(held, kMostRanges);
    for (std::int64_t i = 0; i < ranges; ++i) {
      const std::int64_t end = (i + 1) * all / ranges;
      const std::int64_t own = (i + 1) * held / ranges - i * held / ranges;
      add(train, std::max(document, end - own));
      add(valid, end);
    }
    add(train, all);
  }
  return {TokenStream(std::move(train)), TokenStream(std::move(valid))};
}

bool DocumentPieces::next_part() {
  if (parts_ == stream_->parts().size()) return false;
  const TokenRange& part = stream_->parts()[parts_];
  // part_end_ and offset_ are still those of the part before.
  offset_ += part_end_ - part.first;
  part_end_ = part.first + part.count;
  begin_ = end_ = part.first;
  document_ = part.shard->document_of(part.first);
  ++parts_;
  return true;
}

bool DocumentPieces::next_document() {
  while (begin_ == end_) {
    if (end_ == part_end_) {
      if (!next_part()) return false;
      continue;
    }
    const TokenShard& shard = *stream_->parts()[parts_ - 1].shard;
    const std::int64_t begin = shard.document_begin(document_);
    const std::int64_t end =
        document_ < shard.documents() ? shard.document_begin(document_ + 1) : begin;
    // The first document of a part may begin before it.
    if (begin > end_ || end < begin_ || document_ == shard.documents())
      user_error(
          "{}.idx: document {} has tokens {} to {}, but the one before ends at {}; the file is "
          "damaged: copy or write it again",
          shard.name(), document_, begin, end, begin_);
    end_ = std::min(end, part_end_);
    ++document_;
    if (begin_ < end_) ++(end_ - begin_ > length_ ? cut_ : whole_);
  }
  return true;
}

bool DocumentPieces::next(Piece& piece) {
  if (begin_ == end_ && !next_document()) return false;
  const std::int64_t tokens = std::min(end_ - begin_, length_);
  piece = {.first = begin_ + offset_,
           .tokens = static_cast<std::uint32_t>(tokens),
           .continues = begin_ + tokens < end_};
  begin_ += tokens;
  return true;
}

}  // namespace kintsugi
