#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/example.h"
#include "data/chat/prompt_encoder.h"

namespace kintsugi {

// Which tokens of a conversation are trained.
enum class ExampleLoss : std::uint8_t {
  Assistant,   // all answers
  Completion,  // the last answer
  All,         // every token
};
ExampleLoss parse_example_loss(std::string_view name);  // UserError with the known names

// How examples become tokens.
struct ExampleFormat {
  const ChatFormat* chat = nullptr;  // nullptr: only texts
  bool as_chat = false;              // prompts and completions that are strings are messages
  ExampleLoss loss = ExampleLoss::Assistant;
  PromptSettings settings = {};
  std::optional<std::int32_t> eos = {};  // ends a completion that is text
};
// `chat_template` is the name of a format; empty: the one of the tokenizer's files, if there is
// one.
ExampleFormat example_format(const Tokenizer& tokenizer, const std::string& chat_template);

struct EncodedExample {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;  // 1: trained
  std::vector<std::size_t> ends;   // of its sequences: one, of a pair two
  std::int64_t text_bytes = 0;
};

// Converts examples to tokens. For one thread.
class ExampleEncoder {
 public:
  ExampleEncoder(const Tokenizer& tokenizer, const ExampleFormat& format);
  // UserError if the chat format cannot express a conversation.
  EncodedExample encode(const Example& example);

 private:
  void add_sequence(const Example& example, const std::vector<ChatMessage>& answer,
                    EncodedExample& to) const;
  std::vector<ChatPiece> pieces_of(const Example& example,
                                   const std::vector<ChatMessage>& answer) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  ExampleFormat format_;
  PromptEncoder encoder_;
};

}  // namespace kintsugi
