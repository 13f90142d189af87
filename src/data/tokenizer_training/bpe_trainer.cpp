#include "data/tokenizer_training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_set>

#include "core/error.h"
#include "data/tokenizer_training/merge_learner.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/utf8.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kBytes = 256, kMostTokens = std::int64_t{1} << 30;
constexpr std::size_t kMergesPerReport = 256;

// The bytes by the code points of their letters, the order of ids in Hugging Face's trainer.
std::array<std::uint8_t, kBytes> bytes_by_letter() {
  std::array<std::uint8_t, kBytes> bytes;
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  std::sort(bytes.begin(), bytes.end(), [](std::uint8_t a, std::uint8_t b) {
    return detail::kByteAlphabet.letter[a] < detail::kByteAlphabet.letter[b];
  });
  return bytes;
}

}  // namespace

void check_bpe_options(const BpeTrainerOptions& options) {
  std::unordered_set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) user_error("a special token is empty");
    if (valid_utf8_prefix(token) != token.size()) user_error("a special token is not UTF-8");
    const auto bytes = from_byte_alphabet(token);
    if (bytes && bytes->size() == 1)
      user_error("the special token '{}' is a letter of the byte alphabet; give it a longer name",
                 token);
    if (!seen.insert(token).second) user_error("the special token '{}' is given twice", token);
  }
  const std::int64_t least = kBytes + static_cast<std::int64_t>(options.special_tokens.size());
  if (options.vocab_size < least)
    user_error("a vocabulary of {} is too small: the 256 bytes and {} special token{} need {}",
               options.vocab_size, options.special_tokens.size(),
               options.special_tokens.size() == 1 ? "" : "s", least);
  if (options.vocab_size > kMostTokens)
    user_error("a vocabulary of {} is too large", options.vocab_size);
  if (options.min_frequency < 0)
    user_error("the minimum frequency of a pair is {}, it must not be negative",
               options.min_frequency);
}

TrainedBpe train_bpe(std::span<const PreTokenCount> pre_tokens, const BpeTrainerOptions& options) {
  check_bpe_options(options);
  TrainedBpe bpe;
  bpe.tokens = options.special_tokens;
  bpe.special_tokens = static_cast<std::int64_t>(bpe.tokens.size());
  std::array<std::int32_t, kBytes> byte_ids;
  for (const std::uint8_t byte : bytes_by_letter()) {
    byte_ids[byte] = static_cast<std::int32_t>(bpe.tokens.size());
    bpe.tokens.emplace_back(1, static_cast<char>(byte));
  }
  std::unordered_set<std::string> reserved;  // bytes whose letters spell a special token
  for (const std::string& token : options.special_tokens)
    if (auto bytes = from_byte_alphabet(token)) reserved.insert(std::move(*bytes));

  MergeLearner learner(pre_tokens, byte_ids, options.min_frequency);
  while (bpe.vocab_size() < options.vocab_size) {
    const auto pair = learner.best();
    if (!pair) break;
    std::string token = bpe.tokens[static_cast<std::size_t>(pair->left)] +
                        bpe.tokens[static_cast<std::size_t>(pair->right)];
    if (reserved.contains(token)) {
      learner.forget(*pair);
      continue;
    }
    learner.merge(*pair, static_cast<std::int32_t>(bpe.tokens.size()));
    bpe.tokens.push_back(std::move(token));
    bpe.merges.push_back(*pair);
    if (options.progress && bpe.merges.size() % kMergesPerReport == 0)
      options.progress(bpe.vocab_size());
  }
  bpe.corpus_bytes = learner.corpus_bytes();
  bpe.corpus_tokens = learner.corpus_tokens();
  return bpe;
}

}  // namespace kintsugi
