#include "data/tokenizer_training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "core/error.h"
#include "data/tokenizer_training/merge_learner.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizer.h"
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

using Json = nlohmann::ordered_json;

std::vector<std::string> letters_of_tokens(const TrainedBpe& bpe) {
  std::vector<std::string> letters;
  letters.reserve(bpe.tokens.size());
  for (const std::string& token : bpe.tokens)
    letters.push_back(static_cast<std::int64_t>(letters.size()) < bpe.special_tokens
                          ? token
                          : to_byte_alphabet(token));
  return letters;
}

Json model_json(const TrainedBpe& bpe) {
  const std::vector<std::string> letters = letters_of_tokens(bpe);
  Json vocabulary = Json::object();
  auto& entries = vocabulary.get_ref<Json::object_t&>();
  entries.reserve(letters.size());
  // Bypasses ordered_json's own insertion, which searches the whole object for each key.
  for (std::size_t id = 0; id < letters.size(); ++id) entries.emplace_back(letters[id], id);
  // Every version of Hugging Face's library reads "a b", only newer ones read ["a", "b"]. No letter
  // is a space.
  Json merges = Json::array();
  for (const auto& [left, right] : bpe.merges)
    merges.push_back(letters[static_cast<std::size_t>(left)] + " " +
                     letters[static_cast<std::size_t>(right)]);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Json added_tokens_json(const TrainedBpe& bpe) {
  Json added = Json::array();
  for (std::int64_t id = 0; id < bpe.special_tokens; ++id)
    added.push_back({{"id", id},
                     {"content", bpe.tokens[static_cast<std::size_t>(id)]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return added;
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

std::vector<Tokenizer::File> trained_tokenizer_files(const TrainedBpe& bpe, std::string_view family,
                                                     const std::string& end_of_document) {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  Json post_processor = byte_level;  // changes offsets only: keep the leading space
  post_processor["trim_offsets"] = false;
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added_tokens_json(bpe)},
                          {"normalizer", Json::parse(normalizer_json_of_family(family))},
                          {"pre_tokenizer", Json::parse(PreTokenizer::of_family(family).json())},
                          {"post_processor", post_processor},
                          {"decoder", byte_level},
                          {"model", model_json(bpe)}};
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"eos_token", end_of_document},
                       {"add_prefix_space", false},
                       {"clean_up_tokenization_spaces", false}};
  return {{"tokenizer_config.json", config.dump(2) + "\n"},
          {"tokenizer.json", tokenizer.dump(1) + "\n"}};
}

}  // namespace kintsugi
