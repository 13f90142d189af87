#include "serve/http/text_calls.h"

namespace kintsugi {
namespace {

class ChatCall : public TextCall {
 public:
  ChatCall(const CallModel& model, ChatBody body, std::vector<std::int32_t> prompt)
      : model_(model), body_(std::move(body)), prompt_(std::move(prompt)) {
    usage_.prompt = std::ssize(prompt_);
    for (std::int64_t k = 0; k < body_.n; ++k) answers_.emplace_back(model.tokenizer, prompt_);
  }

  std::vector<GenerationRequest> requests() const override {
    std::vector<GenerationRequest> result;
    for (std::int64_t k = 0; k < body_.n; ++k) {
      // Without max_tokens: until the answer ends or the context is full.
      result.push_back(request_for(body_, prompt_, k, model_.max_tokens, model_.max_length));
      stop_at_end_of_turn(result.back(), *model_.format, *model_.tokenizer);
    }
    return result;
  }

  const char* object(bool chunk) const override {
    return chunk ? "chat.completion.chunk" : "chat.completion";
  }

  OrderedJson whole(std::size_t text, const GenerationResult& result) override {
    usage_.completion += std::ssize(result.tokens);
    return chat_choice(text, answer_content(*model_.format, result.text),
                       logprobs_json(text, result.tokens), result.finish);
  }

  std::vector<OrderedJson> begin() override {
    std::vector<OrderedJson> choices;
    for (std::size_t text = 0; text < answers_.size(); ++text)
      choices.push_back(
          chat_delta(text, {{"role", "assistant"}, {"content", ""}}, logprobs_json(text, {}), {}));
    return choices;
  }

  std::vector<OrderedJson> continued(const TextEvent& event) override {
    if (event.end) {
      usage_.completion += std::ssize(event.end->tokens);
      return {chat_delta(event.text, OrderedJson::object(), nullptr, event.end->finish)};
    }
    std::vector<SampledToken> tokens;
    if (event.token) tokens.push_back(*event.token);
    const std::string added = added_content(answers_[event.text], event.piece);
    if (added.empty() && !wants_logprobs()) return {};
    return {chat_delta(event.text, {{"content", added}}, logprobs_json(event.text, tokens), {})};
  }

 private:
  struct Answer {
    Answer(const Tokenizer* tokenizer, std::span<const std::int32_t> prompt)
        : texts(tokenizer, prompt) {}
    TokenTexts texts;
    std::string generated = {};  // so far
    std::size_t shown = 0;       // bytes of the content
  };

  bool wants_logprobs() const { return body_.sampling.logprobs >= 0; }
  // What a piece adds to the content, which leaves out white space of the format at both ends.
  std::string added_content(Answer& answer, std::string_view piece) {
    answer.generated += piece;
    const std::string content = answer_content(*model_.format, answer.generated);
    if (content.size() <= answer.shown) return "";
    return content.substr(std::exchange(answer.shown, content.size()));
  }
  OrderedJson logprobs_json(std::size_t text, const std::vector<SampledToken>& tokens) {
    if (!wants_logprobs()) return nullptr;
    OrderedJson list = OrderedJson::array();
    for (const SampledToken& token : tokens)
      list.push_back(chat_logprob(token, body_.sampling.logprobs, answers_[text].texts));
    return {{"content", std::move(list)}};
  }

  CallModel model_;
  ChatBody body_;
  std::vector<std::int32_t> prompt_;
  std::vector<Answer> answers_;
};

}  // namespace

std::unique_ptr<TextCall> make_chat_call(const CallModel& model, ChatBody body,
                                         std::vector<std::int32_t> prompt) {
  return std::make_unique<ChatCall>(model, std::move(body), std::move(prompt));
}

}  // namespace kintsugi
