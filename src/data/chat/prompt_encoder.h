#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"

namespace kintsugi {

// What the files of a Hugging Face tokenizer say about prompts.
struct PromptSettings {
  std::string bos = {};            // the beginning-of-text token (BOS); empty: none
  bool adds_bos = false;           // transformers begins each text with it
  std::string eos = {}, pad = {};  // names of tokens; empty: none
  std::string chat_template = {};  // Jinja; empty: none
};
// From tokenizer_config.json (bos_token, add_bos_token, eos_token, pad_token, chat_template),
// chat_template.jinja and the post_processor of tokenizer.json. A UserError names the file.
PromptSettings read_prompt_settings(std::span<const Tokenizer::File> files);

enum class BosChoice : std::uint8_t { Auto, Yes, No };
BosChoice parse_bos_choice(std::string_view text);  // auto, yes, no

// Converts prompts to tokens.
class PromptEncoder {
 public:
  // Auto: BOS if the tokenizer's files say so. `model_bos` (-1: none) is used for Yes if the
  // tokenizer names none; UserError if there is no BOS at all.
  PromptEncoder(Tokenizer& tokenizer, const PromptSettings& settings, BosChoice bos,
                std::int64_t model_bos);

  // A text that begins with BOS does not get a second one.
  std::vector<std::int32_t> encode(std::string_view text, SpecialTokens special) const;
  // A conversation. Special tokens of the format always count; `special` is for the contents of
  // messages, which could otherwise end their own turn.
  std::vector<std::int32_t> encode(std::span<const ChatText> pieces, SpecialTokens special) const;
  // The same ids for training, with 1 for each token of an answer. Contents are text. A token that
  // crosses the border between a prompt and an answer belongs to the answer.
  struct Marked {
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> answer;
  };
  Marked encode_answers(std::span<const ChatText> pieces) const;

 private:
  bool has_special(const std::string& text) const;
  bool divides(std::span<const ChatText> pieces) const;
  std::vector<std::size_t> token_ends(std::span<const std::int32_t> ids,
                                      std::string_view text) const;
  Marked encode_as_one_text(std::span<const ChatText> pieces) const;
  std::vector<std::int32_t> with_bos(std::vector<std::int32_t> ids) const;

  Tokenizer& tokenizer_;
  std::optional<std::int32_t> bos_;  // to add
};

}  // namespace kintsugi
