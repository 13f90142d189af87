#include "data/tokenizers/bpe_files.h"

#include <nlohmann/json.hpp>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizer.h"

namespace kintsugi {
namespace {

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
