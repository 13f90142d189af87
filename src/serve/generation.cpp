#include "serve/generation.h"

#include <array>
#include <memory>

#include "core/error.h"
#include "serve/text_output.h"

namespace kintsugi {

void stop_at_end_of_turn(GenerationRequest& request, const ChatFormat& format,
                         const Tokenizer& tokenizer) {
  // A tokenizer without such a token writes the end of a turn as text.
  request.stop.emplace_back(format.end_of_turn);
  if (const auto id = tokenizer.token_id(format.end_of_turn)) request.stop_tokens.push_back(*id);
}

std::string_view to_string(FinishReason reason) {
  constexpr std::array<std::string_view, 4> kWords = {"stop", "length", "cancelled", "failed"};
  return kWords.at(static_cast<std::size_t>(reason));
}

namespace {

// The text of one request as its tokens arrive.
class ArrivingText {
 public:
  ArrivingText(const Tokenizer* tokenizer, const GenerationRequest& request,
               std::function<bool(std::string_view)> on_text)
      : output_(tokenizer, request.prompt), stop_(request.stop), on_text_(std::move(on_text)) {}

  bool add(const SampledToken& token) {
    result_.tokens.push_back(token);
    const bool wanted = show(stop_.add(output_.add(token.id)));
    return wanted && !stop_.found();
  }
  void set_scores(const std::vector<SampledToken>& scores) { result_.scores = scores; }
  GenerationResult end(InferenceEnd end, const std::string& error) {
    if (const std::string rest = stop_.rest(); !rest.empty()) show(rest);
    result_.error = error;
    result_.finish = end == InferenceEnd::Failed                       ? FinishReason::Failed
                     : stop_.found() || end == InferenceEnd::StopToken ? FinishReason::Stop
                     : end == InferenceEnd::Length                     ? FinishReason::Length
                                                                       : FinishReason::Cancelled;
    return std::move(result_);
  }

 private:
  bool show(const std::string& text) {
    result_.text += text;
    return on_text_(text);
  }

  TextOutput output_;
  StopStrings stop_;
  std::function<bool(std::string_view)> on_text_;
  GenerationResult result_;
};

}  // namespace

TextGeneration make_text_generation(const Tokenizer* tokenizer, GenerationRequest request,
                                    std::function<bool(std::string_view)> on_text,
                                    std::function<void(GenerationResult)> on_end) {
  const auto text = std::make_shared<ArrivingText>(tokenizer, request, std::move(on_text));
  return {{.prompt = std::move(request.prompt),
           .max_tokens = request.max_tokens,
           .sampling = request.sampling,
           .score_from = request.score_from,
           .stop_tokens = std::move(request.stop_tokens)},
          {.on_scores = [text](const std::vector<SampledToken>& s) { text->set_scores(s); },
           .on_token = [text](const SampledToken& token) { return text->add(token); },
           .on_end = [text, on_end = std::move(on_end)](
                         InferenceEnd end,
                         const std::string& error) { on_end(text->end(end, error)); }}};
}

GenerationResult generate_text(InferenceEngine& engine, const Tokenizer* tokenizer,
                               GenerationRequest request,
                               std::function<bool(std::string_view)> on_text) {
  GenerationResult result;
  TextGeneration text =
      make_text_generation(tokenizer, std::move(request), std::move(on_text),
                           [&](GenerationResult end) { result = std::move(end); });
  engine.submit(std::move(text.request), std::move(text.listener));
  engine.run();
  if (result.finish == FinishReason::Failed) failure("{}", result.error);
  return result;
}

}  // namespace kintsugi
