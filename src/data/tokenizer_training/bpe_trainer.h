#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// A distinct pre-token of the corpus and its number of occurrences.
struct PreTokenCount {
  std::string_view text;
  std::int64_t count = 0;
};

struct BpeTrainerOptions {
  std::int64_t vocab_size = 32000;  // including the special tokens and the 256 bytes
  std::int64_t min_frequency = 2;   // of a pair that becomes a token
  std::vector<std::string> special_tokens;
  std::function<void(std::int64_t tokens)> progress;  // called with the vocabulary size so far
};

// Order of the ids: the special tokens as given, the 256 bytes by the code points of their letters
// (data/tokenizers/byte_alphabet.h), then one token per merge.
struct TrainedBpe {
  struct Merge {
    std::int32_t left, right;
    bool operator==(const Merge&) const = default;
  };
  std::vector<std::string> tokens;  // the bytes of each id; for special tokens their text
  std::int64_t special_tokens = 0;
  std::vector<Merge> merges;
  std::int64_t corpus_bytes = 0, corpus_tokens = 0;  // of the training text

  std::int64_t vocab_size() const { return static_cast<std::int64_t>(tokens.size()); }
};

// Learns byte-level BPE merges from distinct pre-tokens with counts. Each step merges the adjacent
// pair with the highest count into a new token; ties go to the smaller left id, then to the smaller
// right id. All occurrences of a pair count, including overlapping ones ("aaa" has two of "aa");
// they are merged from left to right. Training ends when the vocabulary is full or no pair reaches
// min_frequency.
//
// These are the rules of Hugging Face's BpeTrainer, so the merges are the same, with one exception:
// a pair that spells a special token is never merged, so that text cannot become a special token.
//
// The order of the pre-tokens does not matter. Time is proportional to the number of merged
// occurrences, for pre-tokens of any length. Memory: about 40 bytes per byte of the distinct
// pre-tokens.
TrainedBpe train_bpe(std::span<const PreTokenCount> pre_tokens, const BpeTrainerOptions& options);

// UserError for options that train_bpe would reject, to report them before hours of counting.
void check_bpe_options(const BpeTrainerOptions& options);

// The tokenizer.json and tokenizer_config.json of a trained vocabulary for Hugging Face. `family`
// names the pre-tokenizer (and normalizer) of the training; `end_of_document` is one of the special
// tokens.
std::vector<Tokenizer::File> trained_tokenizer_files(const TrainedBpe& bpe, std::string_view family,
                                                     const std::string& end_of_document);

}  // namespace kintsugi
