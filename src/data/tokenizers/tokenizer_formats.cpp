#include "data/tokenizers/tokenizer_formats.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pre_tokenizer.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(TokenizerCompanions companions) : companions_(std::move(companions)) {}
  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<ByteTokenizer>(companions_);
  }
  std::string description() const override { return "bytes, 256 tokens"; }
  std::int64_t vocab_size() const override { return 256; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    const std::optional<std::string> bytes = from_byte_alphabet(token);
    if (!bytes || bytes->size() != 1) return std::nullopt;
    return static_cast<unsigned char>((*bytes)[0]);
  }
  void encode(std::string_view text, std::vector<std::int32_t>& ids, SpecialTokens) override {
    const std::size_t before = ids.size();
    ids.resize(before + text.size());
    for (std::size_t i = 0; i < text.size(); ++i)
      ids[before + i] = static_cast<unsigned char>(text[i]);
  }
  void decode(std::span<const std::int32_t> ids, std::string& text, SpecialTokens) const override {
    for (const std::int32_t id : ids) {
      check(id);
      text += static_cast<char>(id);
    }
  }
  std::int64_t bytes_of(std::int32_t id) const override {
    check(id);
    return 1;
  }
  std::vector<File> files(std::int64_t max_positions) const override {
    return companions_.with({"tokenizer.json", byte_tokenizer_json()},
                            byte_tokenizer_config_json(max_positions));
  }
  std::string fingerprint() const override { return "bytes"; }

 private:
  static void check(std::int32_t id) {
    if (id < 0 || id > 255)
      user_error("token id {} is out of range: the vocabulary has 256 tokens", id);
  }

  TokenizerCompanions companions_;
};

constexpr std::int32_t kHighestRank = (1 << 20) - 1024;
constexpr std::size_t kLongestToken = 4096;

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool decode_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (text.ends_with('=')) text.remove_suffix(1);
  unsigned bits = 0, held = 0;
  for (const char c : text) {
    const int value = base64_value(c);
    if (value < 0) return false;
    bits = bits << 6 | static_cast<unsigned>(value);
    held += 6;
    if (held >= 8) bytes += static_cast<char>(bits >> (held -= 8) & 0xFF);
  }
  return !bytes.empty() && text.size() % 4 != 1;
}

// "aGVsbG8= 17"
bool read_line(std::string_view line, std::string& token, std::int32_t& rank) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || !decode_base64(line.substr(0, space), token)) return false;
  const char* const end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + space + 1, end, rank);
  return error == std::errc() && stop == end && rank >= 0;
}

template <class Visit>  // visit(line, number) until it returns false
void for_each_line(std::string_view content, Visit&& visit) {
  for (std::size_t number = 1; !content.empty(); ++number) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !visit(line, number)) return;
  }
}

struct Ranks {
  std::unordered_map<std::string_view, std::int32_t> of;
  std::vector<std::string> tokens;  // by rank; empty where there is none
};

Ranks read_ranks(std::string_view content) {
  Ranks ranks;
  for_each_line(content, [&](std::string_view line, std::size_t number) {
    std::string token;
    std::int32_t rank;
    if (!read_line(line, token, rank))
      user_error("line {} is not a token in base64, a space and its rank", number);
    if (rank > kHighestRank) user_error("line {} has the rank {}, which is too high", number, rank);
    if (token.size() > kLongestToken)
      user_error("line {} has a token of {} bytes, which is too long", number, token.size());
    const auto index = static_cast<std::size_t>(rank);
    if (index >= ranks.tokens.size()) ranks.tokens.resize(index + 1);
    if (!ranks.tokens[index].empty()) user_error("line {} repeats an earlier rank", number);
    ranks.tokens[index] = std::move(token);
    return true;
  });
  if (ranks.tokens.empty()) user_error("the file has no ranks");
  for (std::size_t i = 0; i < ranks.tokens.size(); ++i)
    if (!ranks.tokens[i].empty() &&
        !ranks.of.emplace(ranks.tokens[i], static_cast<std::int32_t>(i)).second)
      user_error("rank {} has the same token as another rank", i);
  return ranks;
}

struct Special {
  std::string name;
  std::size_t offset;  // from the first id after the ranks
};

std::vector<Special> special_tokens_of(const std::string& family) {
  if (family == "llama3") {
    std::vector<Special> all = {{"<|begin_of_text|>", 0},
                                {"<|end_of_text|>", 1},
                                {"<|reserved_special_token_0|>", 2},
                                {"<|reserved_special_token_1|>", 3},
                                {"<|reserved_special_token_2|>", 4},
                                {"<|reserved_special_token_3|>", 5},
                                {"<|start_header_id|>", 6},
                                {"<|end_header_id|>", 7},
                                {"<|reserved_special_token_4|>", 8},
                                {"<|eot_id|>", 9}};
    for (std::size_t i = 5; i < 251; ++i)
      all.push_back({fmt::format("<|reserved_special_token_{}|>", i), i + 5});
    return all;
  }
  if (family == "qwen") return {{"<|endoftext|>", 0}, {"<|im_start|>", 1}, {"<|im_end|>", 2}};
  if (family == "cl100k" || family == "olmo2")
    return {{"<|endoftext|>", 1},
            {"<|fim_prefix|>", 2},
            {"<|fim_middle|>", 3},
            {"<|fim_suffix|>", 4},
            {"<|endofprompt|>", 20}};
  if (family == "o200k") return {{"<|endoftext|>", 1}, {"<|endofprompt|>", 20}};
  return {{"<|endoftext|>", 0}};
}

// tiktoken merges any pair whose result has the lowest rank, so each way to split a token into two
// tokens is a merge.
std::string merges_json(const Ranks& ranks) {
  std::string text;
  std::vector<std::pair<std::int32_t, std::int32_t>> splits;
  for (const std::string& token : ranks.tokens) {
    splits.clear();
    for (std::size_t middle = 1; middle < token.size(); ++middle) {
      const auto left = ranks.of.find(std::string_view(token).substr(0, middle));
      const auto right = ranks.of.find(std::string_view(token).substr(middle));
      if (left != ranks.of.end() && right != ranks.of.end())
        splits.emplace_back(left->second, right->second);
    }
    std::sort(splits.begin(), splits.end());
    for (const auto& [left, right] : splits) {
      const Json pair = {to_byte_alphabet(ranks.tokens[static_cast<std::size_t>(left)]),
                         to_byte_alphabet(ranks.tokens[static_cast<std::size_t>(right)])};
      text.append(text.empty() ? "" : ",").append(pair.dump());
    }
  }
  return "[" + text + "]";
}

std::string vocabulary_json(const Ranks& ranks) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.tokens.size(); ++rank)
    if (!ranks.tokens[rank].empty())
      text += fmt::format("{}{}:{}", text.empty() ? "" : ",",
                          Json(to_byte_alphabet(ranks.tokens[rank])).dump(), rank);
  return "{" + text + "}";
}

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer(TokenizerCompanions companions) {
  return std::make_unique<ByteTokenizer>(std::move(companions));
}

Json byte_level_json(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json special_token_json(std::size_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json bpe_model_json(Json vocabulary, Json merges) {
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

std::string byte_tokenizer_json() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", Json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level_json(false)},
              {"post_processor", nullptr},
              {"decoder", byte_level_json(false)},
              {"model", bpe_model_json(vocabulary, Json::array())}}
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

bool is_tiktoken(std::string_view content) {
  bool yes = false;
  std::string token;
  std::int32_t rank;
  for_each_line(content.substr(0, 1 << 14), [&](std::string_view line, std::size_t) {
    yes = read_line(line, token, rank);
    return false;
  });
  return yes;
}

std::string tiktoken_family_of(std::string_view name) {
  for (const auto& [file, family] :
       {std::pair{"r50k_base.tiktoken", "gpt2"}, std::pair{"gpt2.tiktoken", "gpt2"},
        std::pair{"cl100k_base.tiktoken", "cl100k"}, std::pair{"o200k_base.tiktoken", "o200k"},
        std::pair{"qwen.tiktoken", "qwen"}, std::pair{"tokenizer.model", "llama3"}})
    if (name == file) return family;
  return "";
}

std::string tiktoken_to_json(std::string_view content, const std::string& family) {
  const PreTokenizer pre_tokenizer = PreTokenizer::of_family(family);
  const Ranks ranks = read_ranks(content);
  Json added = Json::array();
  for (const Special& special : special_tokens_of(family))
    added.push_back(special_token_json(ranks.tokens.size() + special.offset, special.name));
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":{},"normalizer":{},)"
      R"("pre_tokenizer":{},"post_processor":null,"decoder":{},"model":{{"type":"BPE",)"
      R"("dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":true,)"
      R"("vocab":{},"merges":{}}}}})"
      "\n",
      added.dump(), normalizer_json_of_family(family), pre_tokenizer.json(),
      byte_level_json(false).dump(), vocabulary_json(ranks), merges_json(ranks));
}

}  // namespace kintsugi
