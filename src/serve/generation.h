#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"
#include "serve/inference_engine.h"

namespace kintsugi {

// One text to generate. Its result depends on nothing else: no other request, no earlier one.
struct GenerationRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 0;
  SamplingOptions sampling = {};
  std::optional<std::int64_t> score_from = {};  // as in InferenceRequest
  std::vector<std::string> stop = {};           // the text ends before the first of these
  // End the text, as the model's end-of-text token does.
  std::vector<std::int32_t> stop_tokens = {};
};

// Ends the text where the format says that an answer ends.
void stop_at_end_of_turn(GenerationRequest& request, const ChatFormat& format,
                         const Tokenizer& tokenizer);

enum class FinishReason : std::uint8_t { Stop, Length, Cancelled, Failed };
std::string_view to_string(FinishReason reason);  // stop, length, cancelled, failed

struct GenerationResult {
  std::string text = {};
  // All that were generated, also those of the stop string; without the token that ended the text.
  std::vector<SampledToken> tokens = {};
  std::vector<SampledToken> scores = {};  // of the prompt, from score_from on
  FinishReason finish = FinishReason::Length;
  std::string error = {};  // if it failed
};

// What an engine is given for a text.
struct TextGeneration {
  InferenceRequest request;
  InferenceListener listener;
};
// Calls on_text with the text as it becomes final; the pieces add up to the result's text. It may
// be empty. Ends early when on_text returns false. Calls on_end last. Without a tokenizer, the text
// is the list of ids. UserError for a wrong stop string.
TextGeneration make_text_generation(const Tokenizer* tokenizer, GenerationRequest request,
                                    std::function<bool(std::string_view)> on_text,
                                    std::function<void(GenerationResult)> on_end);

// Generates one text and returns it. Throws Failure with the error if it failed.
GenerationResult generate_text(InferenceEngine& engine, const Tokenizer* tokenizer,
                               GenerationRequest request,
                               std::function<bool(std::string_view)> on_text);

}  // namespace kintsugi
