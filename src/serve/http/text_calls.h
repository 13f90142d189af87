#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/pending_texts.h"
#include "serve/http/replies.h"
#include "serve/http/request_bodies.h"

namespace kintsugi {

struct EncodedPrompt {
  std::vector<std::int32_t> tokens;
  std::string text = {};   // for echo
  bool added_bos = false;  // the first token is not part of the text
};

// A call of /v1/completions or /v1/chat/completions: from the engine's results to JSON, whole or in
// pieces. Texts are numbered: prompt 0 with its n texts, then prompt 1, …
class TextCall {
 public:
  virtual ~TextCall() = default;
  virtual std::vector<GenerationRequest> requests() const = 0;
  virtual const char* object(bool chunk) const = 0;  // the "object" of a reply
  // The choice of a text that was generated without pieces.
  virtual OrderedJson whole(std::size_t text, const GenerationResult& result) = 0;
  // The first choices of a stream, then those of each event.
  virtual std::vector<OrderedJson> begin() = 0;
  virtual std::vector<OrderedJson> continued(const TextEvent& event) = 0;

  TokenUsage usage() const { return usage_; }

 protected:
  // The request of text k of a prompt. `max_length`: tokens of a sequence. HttpError if the prompt
  // is empty or too long.
  static GenerationRequest request_for(const TextParameters& parameters,
                                       std::vector<std::int32_t> prompt, std::int64_t k,
                                       std::int64_t default_max_tokens, std::int64_t max_length);
  TokenUsage usage_;
};

// What a call needs to know of the model.
struct CallModel {
  const Tokenizer* tokenizer = nullptr;  // nullptr: texts are lists of ids
  std::int64_t max_length = 0;           // tokens of a sequence
  std::int64_t max_tokens = 0;           // to generate, if a client does not say
  std::string end_of_text = {};          // the name of the token
  const ChatFormat* format = nullptr;    // for a chat
};

std::unique_ptr<TextCall> make_completion_call(const CallModel& model, CompletionBody body,
                                               std::vector<EncodedPrompt> prompts);
std::unique_ptr<TextCall> make_chat_call(const CallModel& model, ChatBody body,
                                         std::vector<std::int32_t> prompt);

}  // namespace kintsugi
