#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "serve/chat_template.h"
#include "serve/language_model.h"

namespace kintsugi {

// One text to generate. Its result depends on nothing else: no other request, no earlier one.
struct GenerationRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 0;
  SamplingOptions sampling = {};
  std::vector<std::string> stop = {};  // the text ends before the first of these
  std::vector<std::int32_t> stop_tokens =
      {};  // end the text, as the model's end-of-text token does
};

// Ends the text where the format says that an answer ends.
void stop_at_end_of_turn(GenerationRequest& request, const ChatFormat& format,
                         const Tokenizer& tokenizer);

enum class FinishReason : std::uint8_t { Stop, Length, Cancelled };
std::string_view to_string(FinishReason reason);  // stop, length, cancelled

struct GenerationResult {
  std::string text = {};
  // All that were generated, also those of the stop string; without the token that ended the text.
  std::vector<SampledToken> tokens = {};
  FinishReason finish = FinishReason::Length;
};

// Calls on_text with the text as it becomes final; the pieces add up to the result's text. It may
// be empty. Ends early when on_text returns false. Without a tokenizer, the text is the list of
// ids.
GenerationResult generate_text(LanguageModel& model, const Tokenizer* tokenizer,
                               const GenerationRequest& request,
                               const std::function<bool(std::string_view)>& on_text);

}  // namespace kintsugi
