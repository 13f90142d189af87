#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// A piece of the pre-tokenized corpus and how often it came.
struct PieceCount {
  std::string_view piece;
  std::int64_t count = 0;
};

struct BpeTrainerOptions {
  std::int64_t vocab_size = 32000;  // special tokens and the 256 bytes included
  std::int64_t min_frequency = 2;   // of a pair that becomes a token
  std::vector<std::string> special_tokens;
  std::function<void(std::int64_t tokens)> progress;  // now and then, with the vocabulary so far
};

// Ids: the special tokens in the order given, the 256 bytes in the order of their letters'
// code points (data/tokenizers/byte_alphabet.h), then one token per merge.
struct TrainedBpe {
  struct Merge {
    std::int32_t left, right;
    bool operator==(const Merge&) const = default;
  };
  std::vector<std::string> tokens;  // the bytes of every id; of special ones, their text
  std::int64_t special_tokens = 0;
  std::vector<Merge> merges;
  std::int64_t corpus_bytes = 0, corpus_tokens = 0;  // of what it was trained on

  std::int64_t vocab_size() const { return static_cast<std::int64_t>(tokens.size()); }
};

// Learns byte-level BPE merges from counted pieces (each piece given once). At every step the pair
// of neighbours with the highest count becomes a token; among equals the one with the smaller left
// id, then the smaller right id. A pair counts once per place where it stands, overlapping places
// included ("aaa" holds two of "aa"), and is merged from left to right. It ends when the vocabulary
// is full or no pair reaches min_frequency.
//
// These are the rules of Hugging Face's BpeTrainer, so the merges are the same, with one exception:
// a pair that spells a special token is never merged, so that text cannot turn into one.
//
// The order of the pieces changes nothing. Time is in proportion to the places merged, whatever the
// length of a piece; memory to the bytes of the distinct pieces (some 40 each).
TrainedBpe train_bpe(std::span<const PieceCount> pieces, const BpeTrainerOptions& options);

// What a vocabulary must at least have; UserError for what train_bpe would refuse, so that it can
// be said before hours of counting.
void check_bpe_options(const BpeTrainerOptions& options);

}  // namespace kintsugi
