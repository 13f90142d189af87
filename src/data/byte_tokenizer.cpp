#include "data/byte_tokenizer.h"

#include <nlohmann/json.hpp>

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

// GPT-2's printable alphabet: bytes that are visible Latin-1 characters stand for themselves, the
// others, in order, for U+0100 and up.
std::string alphabet_letter(int byte) {
  const auto visible = [](int b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  };
  int code = byte;
  if (!visible(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += visible(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

Json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

}  // namespace

std::string byte_tokenizer_json() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[alphabet_letter(byte)] = byte;
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", vocabulary},
                      {"merges", Json::array()}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", Json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level()},
              {"post_processor", nullptr},
              {"decoder", byte_level()},
              {"model", model}}
             .dump(1) +
         "\n";
}

std::string byte_tokenizer_config_json(std::int64_t max_positions) {
  return Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"model_max_length", max_positions},
              {"clean_up_tokenization_spaces", false}}
             .dump(2) +
         "\n";
}

bool is_byte_tokenizer(const std::string& tokenizer_json) {
  return tokenizer_json == byte_tokenizer_json();
}

}  // namespace kintsugi
