#pragma once

#include <cstdint>
#include <vector>

#include "core/hash.h"
#include "data/stores/token_store.h"

namespace kintsugi {

// Consecutive tokens of one shard.
struct TokenRange {
  const TokenShard* shard = nullptr;
  std::int64_t first = 0, count = 0;
  bool operator==(const TokenRange&) const = default;
};

// Concatenated ranges of shards, addressed as one sequence of tokens.
class TokenStream {
 public:
  TokenStream() = default;
  explicit TokenStream(std::vector<TokenRange> parts);

  const std::vector<TokenRange>& parts() const { return parts_; }
  std::int64_t tokens() const { return ends_.empty() ? 0 : ends_.back(); }
  // Appends the ranges that hold tokens first … first + count - 1: one for each part they touch.
  void locate(std::int64_t first, std::int64_t count, std::vector<TokenRange>& ranges) const;

 private:
  std::vector<TokenRange> parts_;
  std::vector<std::int64_t> ends_;  // of each part, in tokens of the stream
};

// Adds what determines the tokens of a stream: the fingerprints of its shards and the ranges.
void add_parts(const TokenStream& stream, StreamHash& hash);

struct HeldOut {
  TokenStream train, valid;
};

// Holds out the last `valid_fraction` of the documents of each shard for validation. If that is
// less than one document (a text file is a single document), the last tokens are held out instead.
HeldOut hold_out(const std::vector<TokenShard>& shards, double valid_fraction);
// The same for examples: whole documents, spread evenly over each shard, which may be sorted by
// label. At least one of two documents or more, in at most 512 ranges.
HeldOut hold_out_examples(const std::vector<TokenShard>& shards, double valid_fraction);

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
