#pragma once

#include <cstdint>

#include "data/sampling/token_stream.h"

namespace kintsugi {

// Reads the documents of a stream as pieces of at most `length` tokens, in order. Documents that
// the stream contains only in part (held-out tokens) count as shorter documents.
class DocumentPieces {
 public:
  DocumentPieces(const TokenStream& stream, std::int64_t length)
      : stream_(&stream), length_(length) {}

  struct Piece {
    std::int64_t first = 0;  // token of the stream
    std::uint32_t tokens = 0;
    bool continues = false;  // more of the document follows
  };
  // False at the end. UserError if the index of a store is damaged.
  bool next(Piece& piece);

  std::int64_t whole() const { return whole_; }  // documents in one piece, so far
  std::int64_t cut() const { return cut_; }      // documents in several pieces

 private:
  bool next_document();
  bool next_part();

  const TokenStream* stream_;
  std::int64_t length_;
  std::size_t parts_ = 0;             // opened so far
  std::int64_t offset_ = 0;           // of the part: token of the stream - token of the shard
  std::int64_t part_end_ = 0;         // token of the shard
  std::int64_t document_ = 0;         // the next one, within the shard
  std::int64_t begin_ = 0, end_ = 0;  // what is left of this document, tokens of the shard
  std::int64_t whole_ = 0, cut_ = 0;
};

}  // namespace kintsugi
