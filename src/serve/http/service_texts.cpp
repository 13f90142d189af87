#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/log.h"
#include "serve/http/exchange.h"

namespace kintsugi {
namespace {

constexpr auto kPatience = std::chrono::milliseconds(200);  // between looks at the client

std::uint64_t random_number() {
  static thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

}  // namespace

std::int64_t unix_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

HttpReply json_reply(const OrderedJson& json) { return {.body = json_line(json) + "\n"}; }

TextEvent HttpService::Exchange::next(PendingTexts& texts) const {
  for (;;) {
    if (aborting) throw HttpError(503, "shutting_down", "the server is shutting down");
    if (Clock::now() >= deadline)
      throw HttpError(504, "timeout", "the request took longer than --request-timeout");
    if (auto event = texts.next(std::min(deadline, Clock::now() + kPatience)))
      return std::move(*event);
    if (gone()) throw HttpError(499, "client_gone", "the client has left");
  }
}

CallModel HttpService::call_model() const {
  return {.tokenizer = tokenizer_.get(),
          .max_length = engine_options_.max_length,
          .max_tokens = options_.limits.max_tokens,
          .end_of_text = end_of_text_,
          .format = options_.format};
}

void HttpService::check_work(const TextParameters& parameters) const {
  if (draining()) throw HttpError(503, "shutting_down", "the server is shutting down");
  if (!parameters.model.empty() && parameters.model != options_.name)
    throw HttpError(404, "model_not_found",
                    fmt::format("model: '{}' is not served here; this server has '{}'",
                                printable(parameters.model), options_.name));
}

HttpReply HttpService::completions(const std::string& body, Exchange& exchange) {
  CompletionBody parsed = parse_completion_body(body, options_.limits);
  check_work(parsed);
  if (!parsed.seed) parsed.seed = random_number();
  if (!parsed.stop.empty()) tokenizer();
  std::vector<EncodedPrompt> prompts;
  for (const PromptInput& prompt : parsed.prompts) prompts.push_back(encode(prompt, parsed.echo));
  const TextParameters parameters = parsed;
  const bool echo = parsed.echo;
  return generate(make_completion_call(call_model(), std::move(parsed), std::move(prompts)),
                  parameters, echo, "cmpl-", exchange);
}

std::vector<std::int32_t> HttpService::encode_chat(const std::vector<ChatMessage>& messages) {
  tokenizer();
  if (options_.format == nullptr) throw HttpError(400, "no_chat_template", options_.no_chat);
  const auto own = take_tokenizer();
  // A message cannot end its own turn: names of special tokens in it are plain text.
  return PromptEncoder(*own, settings_, options_.bos, config_.bos_token)
      .encode(chat_pieces(*options_.format, messages, true), SpecialTokens::AsText);
}

HttpReply HttpService::chat(const std::string& body, Exchange& exchange) {
  ChatBody parsed = parse_chat_body(body, options_.limits);
  check_work(parsed);
  if (!parsed.seed) parsed.seed = random_number();
  std::vector<std::int32_t> prompt = encode_chat(parsed.messages);
  const TextParameters parameters = parsed;
  return generate(make_chat_call(call_model(), std::move(parsed), std::move(prompt)), parameters,
                  false, "chatcmpl-", exchange);
}

// A call while it is answered.
struct HttpService::Answer {
  HttpService& service;
  Exchange exchange;
  ReplyHead head;
  std::shared_ptr<TextCall> call;
  std::shared_ptr<PendingTexts> texts;
  bool with_usage;  // in a stream

  HttpReply whole() {
    std::vector<OrderedJson> choices(call->requests().size());
    while (!texts->ended()) {
      const TextEvent event = exchange.next(*texts);
      choices[event.text] = call->whole(event.text, *event.end);
    }
    measure();
    OrderedJson json = reply_json(head, call->object(false), std::move(choices));
    json["usage"] = usage_json(call->usage());
    return json_reply(json);
  }

  void stream(const HttpReply::Write& write) {
    try {
      for (const OrderedJson& choice : call->begin()) send(write, {choice}, nullptr);
      while (!texts->ended())
        for (const OrderedJson& choice : call->continued(exchange.next(*texts)))
          send(write, {choice}, nullptr);
      measure();
      if (with_usage) send(write, {}, usage_json(call->usage()));
      write(kLastEvent);
    } catch (const HttpError& error) {
      end_with(write, error);
    } catch (const std::exception& error) {  // the head of the reply is sent: no other status
      log_warning("{}: {}", head.id, error.what());
      end_with(write, HttpError(500, "internal_error", error.what()));
    }
    texts.reset();  // cancels what has not ended
  }

 private:
  static void end_with(const HttpReply::Write& write, const HttpError& error) {
    write("data: " + error_reply(error).body + "\n\n");
  }
  void send(const HttpReply::Write& write, std::vector<OrderedJson> choices, OrderedJson usage) {
    OrderedJson json = reply_json(head, call->object(true), std::move(choices));
    if (with_usage) json["usage"] = std::move(usage);
    if (!write(event_text(json))) throw HttpError(499, "client_gone", "the client has left");
  }
  void measure() const {
    const auto first = texts->first_token();
    if (!first) return;
    const auto seconds = [](Clock::duration time) {
      return std::chrono::duration<double>(time).count();
    };
    service.metrics_.add_first_token(seconds(*first - exchange.start));
    if (const std::int64_t tokens = call->usage().completion; tokens > 1)
      service.metrics_.add_token_time(seconds(Clock::now() - *first) /
                                      static_cast<double>(tokens - 1));
  }
};

void HttpService::check_reply_size(const std::vector<GenerationRequest>& requests,
                                   bool echo) const {
  std::int64_t entries = 0;
  for (const GenerationRequest& request : requests)
    entries += ((echo ? std::ssize(request.prompt) : 0) + request.max_tokens) *
               (1 + std::max<std::int64_t>(0, request.sampling.logprobs));
  if (entries <= options_.limits.max_entries) return;
  throw HttpError(
      400, "reply_too_large",
      fmt::format("the reply could have {} entries, more than {}: ask for fewer texts (prompt, n), "
                  "a smaller max_tokens{}or fewer logprobs",
                  entries, options_.limits.max_entries, echo ? ", shorter prompts (echo) " : " "));
}

HttpReply HttpService::generate(std::unique_ptr<TextCall> call, const TextParameters& parameters,
                                bool echo, const char* id_prefix, Exchange& exchange) {
  std::vector<GenerationRequest> requests = call->requests();
  check_reply_size(requests, echo);
  auto texts = std::make_shared<PendingTexts>(engine_, slots_, tokenizer_.get(),
                                              std::move(requests), parameters.stream);
  Answer answer{
      .service = *this,
      .exchange = exchange,
      .head = {fmt::format("{}{:016x}", id_prefix, random_number()), unix_time(), options_.name},
      .call = std::move(call),
      .texts = std::move(texts),
      .with_usage = parameters.include_usage};
  if (!parameters.stream) return answer.whole();
  HttpReply reply{.content_type = "text/event-stream",
                  .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
  reply.stream = [answer](const HttpReply::Write& write) mutable { answer.stream(write); };
  return reply;
}

}  // namespace kintsugi
