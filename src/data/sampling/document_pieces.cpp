#include "data/sampling/document_pieces.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

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
