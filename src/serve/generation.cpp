#include "serve/generation.h"

#include <algorithm>

#include "serve/text_output.h"

namespace kintsugi {

void stop_at_end_of_turn(GenerationRequest& request, const ChatFormat& format,
                         const Tokenizer& tokenizer) {
  // A tokenizer without such a token writes the end of a turn as text.
  request.stop.emplace_back(format.end_of_turn);
  if (const auto id = tokenizer.token_id(format.end_of_turn)) request.stop_tokens.push_back(*id);
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop:
      return "stop";
    case FinishReason::Length:
      return "length";
    case FinishReason::Cancelled:
      return "cancelled";
  }
  return "";
}

GenerationResult generate_text(LanguageModel& model, const Tokenizer* tokenizer,
                               const GenerationRequest& request,
                               const std::function<bool(std::string_view)>& on_text) {
  GenerationResult result;
  TextOutput output(tokenizer, request.prompt);
  StopStrings stop(request.stop);
  bool stopped = false;
  const auto show = [&](const std::string& text) {
    result.text += text;
    return on_text(text);
  };
  const Finish finish = model.generate(
      request.prompt, request.max_tokens, request.sampling, [&](const SampledToken& token) {
        const auto& ends = request.stop_tokens;
        stopped = std::find(ends.begin(), ends.end(), token.id) != ends.end();
        if (stopped) return false;
        result.tokens.push_back(token);
        const bool wanted = show(stop.add(output.add(token.id)));
        stopped = stop.found();
        return wanted && !stopped;
      });
  if (const std::string rest = stop.rest(); !rest.empty()) show(rest);
  const bool complete = stopped || finish == Finish::EndOfText;
  result.finish = complete                   ? FinishReason::Stop
                  : finish == Finish::Length ? FinishReason::Length
                                             : FinishReason::Cancelled;
  return result;
}

}  // namespace kintsugi
