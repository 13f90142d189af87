#include "serve/http/text_calls.h"

#include <fmt/format.h>

#include <algorithm>

#include "http/http_handler.h"

namespace kintsugi {

GenerationRequest TextCall::request_for(const TextParameters& parameters,
                                        std::vector<std::int32_t> prompt, std::int64_t k,
                                        std::int64_t default_max_tokens, std::int64_t max_length) {
  const std::int64_t length = std::ssize(prompt);
  if (length == 0) bad_field("prompt", "has no tokens; give at least one");
  // At least one token, so that a full prompt is refused and not silently left alone.
  const std::int64_t wanted = parameters.max_tokens.value_or(
      std::max<std::int64_t>(1, std::min(default_max_tokens, max_length - length)));
  if (length + wanted > max_length)
    throw HttpError(400, "context_length_exceeded",
                    fmt::format("the prompt has {} tokens and max_tokens is {}; together they are "
                                "more than the {} of this server (--max-length)",
                                length, wanted, max_length));
  SamplingOptions sampling = parameters.sampling;
  sampling.seed = parameters.seed.value_or(0) + static_cast<std::uint64_t>(k);
  return {.prompt = std::move(prompt),
          .max_tokens = wanted,
          .sampling = sampling,
          .stop = parameters.stop,
          .stop_tokens = parameters.stop_tokens};
}

namespace {

constexpr std::int64_t kDefaultCompletionTokens = 16;  // as OpenAI's API

class CompletionCall : public TextCall {
 public:
  CompletionCall(const CallModel& model, CompletionBody body, std::vector<EncodedPrompt> prompts)
      : model_(model), body_(std::move(body)), prompts_(std::move(prompts)) {
    for (const EncodedPrompt& prompt : prompts_) {
      usage_.prompt += std::ssize(prompt.tokens);
      for (std::int64_t k = 0; k < body_.n; ++k) {
        const bool chained = body_.echo;  // the texts of the prompt's tokens are added first
        texts_.emplace_back(model.tokenizer,
                            chained ? std::span<const std::int32_t>{} : std::span(prompt.tokens));
      }
    }
    generated_.resize(texts_.size());
  }

  std::vector<GenerationRequest> requests() const override {
    std::vector<GenerationRequest> result;
    for (const EncodedPrompt& prompt : prompts_)
      for (std::int64_t k = 0; k < body_.n; ++k) {
        result.push_back(request_for(body_, prompt.tokens, k,
                                     std::min(kDefaultCompletionTokens, model_.max_tokens),
                                     model_.max_length));
        if (scores_prompt() && prompt.tokens.size() > 1) result.back().score_from = 1;
      }
    return result;
  }

  const char* object(bool) const override { return "text_completion"; }

  OrderedJson whole(std::size_t text, const GenerationResult& result) override {
    CompletionLogprobs logprobs(body_.sampling.logprobs);
    if (scores_prompt()) add_prompt(text, result.scores, logprobs);
    for (const SampledToken& token : result.tokens) add_token(text, token, logprobs);
    usage_.completion += std::ssize(result.tokens);
    if (result.finish == FinishReason::Stop) add_missing_end(text, logprobs);
    return choice_json(text, "text", echoed(text) + result.text, json_of(logprobs), result.finish);
  }

  std::vector<OrderedJson> begin() override {
    std::vector<OrderedJson> choices;
    for (std::size_t text = 0; text < texts_.size(); ++text)
      if (body_.echo && !waits_for_scores(text)) choices.push_back(echo_choice(text, {}));
    return choices;
  }

  std::vector<OrderedJson> continued(const TextEvent& event) override {
    if (!event.scores.empty()) return {echo_choice(event.text, event.scores)};
    CompletionLogprobs logprobs(body_.sampling.logprobs);
    if (event.end) {
      usage_.completion += std::ssize(event.end->tokens);
      if (event.end->finish == FinishReason::Stop) add_missing_end(event.text, logprobs);
      return {choice_json(event.text, "text", "", json_of(logprobs), event.end->finish)};
    }
    if (event.token) add_token(event.text, *event.token, logprobs);
    if (event.piece.empty() && !wants_logprobs()) return {};
    return {choice_json(event.text, "text", event.piece, json_of(logprobs), {})};
  }

 private:
  bool wants_logprobs() const { return body_.sampling.logprobs >= 0; }
  bool scores_prompt() const { return body_.echo && wants_logprobs(); }
  const EncodedPrompt& prompt_of(std::size_t text) const {
    return prompts_[text / static_cast<std::size_t>(body_.n)];
  }
  bool waits_for_scores(std::size_t text) const {
    return scores_prompt() && prompt_of(text).tokens.size() > 1;
  }
  std::string echoed(std::size_t text) const { return body_.echo ? prompt_of(text).text : ""; }
  OrderedJson json_of(const CompletionLogprobs& logprobs) const {
    return wants_logprobs() ? logprobs.json() : OrderedJson(nullptr);
  }
  OrderedJson echo_choice(std::size_t text, const std::vector<SampledToken>& scores) {
    CompletionLogprobs logprobs(body_.sampling.logprobs);
    if (scores_prompt()) add_prompt(text, scores, logprobs);
    return choice_json(text, "text", echoed(text), json_of(logprobs), {});
  }

  void add_prompt(std::size_t text, const std::vector<SampledToken>& scores,
                  CompletionLogprobs& logprobs) {
    const EncodedPrompt& prompt = prompt_of(text);
    if (prompt.added_bos) {
      logprobs.add_plain(texts_[text].alternative(prompt.tokens.front()), 0);
    } else {
      const TokenTexts::Entry first = texts_[text].add(prompt.tokens.front());
      logprobs.add_plain(first.bytes, first.offset);
    }
    for (const SampledToken& token : scores) logprobs.add(token, texts_[text]);
  }
  void add_token(std::size_t text, const SampledToken& token, CompletionLogprobs& logprobs) {
    ++generated_[text];
    if (wants_logprobs()) logprobs.add(token, texts_[text]);
  }
  // A client that scores a prompt expects one generated token after it. If the text has ended with
  // its first token, that one was not reported.
  void add_missing_end(std::size_t text, CompletionLogprobs& logprobs) {
    if (scores_prompt() && generated_[text] == 0)
      logprobs.add_plain(model_.end_of_text, count_characters(prompt_of(text).text));
  }

  CallModel model_;
  CompletionBody body_;
  std::vector<EncodedPrompt> prompts_;
  std::vector<TokenTexts> texts_;        // by text
  std::vector<std::int64_t> generated_;  // tokens, by text
};

}  // namespace

std::unique_ptr<TextCall> make_completion_call(const CallModel& model, CompletionBody body,
                                               std::vector<EncodedPrompt> prompts) {
  return std::make_unique<CompletionCall>(model, std::move(body), std::move(prompts));
}

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
    return choice_json(
        text, "message",
        {{"role", "assistant"}, {"content", answer_content(*model_.format, result.text)}},
        logprobs_json(text, result.tokens), result.finish);
  }

  std::vector<OrderedJson> begin() override {
    std::vector<OrderedJson> choices;
    for (std::size_t text = 0; text < answers_.size(); ++text)
      choices.push_back(choice_json(text, "delta", {{"role", "assistant"}, {"content", ""}},
                                    logprobs_json(text, {}), {}));
    return choices;
  }

  std::vector<OrderedJson> continued(const TextEvent& event) override {
    if (event.end) {
      usage_.completion += std::ssize(event.end->tokens);
      return {choice_json(event.text, "delta", OrderedJson::object(), nullptr, event.end->finish)};
    }
    std::vector<SampledToken> tokens;
    if (event.token) tokens.push_back(*event.token);
    const std::string added = added_content(answers_[event.text], event.piece);
    if (added.empty() && !wants_logprobs()) return {};
    return {choice_json(event.text, "delta", {{"content", added}},
                        logprobs_json(event.text, tokens), {})};
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
