#include "serve/http/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/log.h"
#include "http/http_handler.h"
#include "serve/http/exchange.h"
#include "serve/http/page.h"

namespace kintsugi {
namespace {

// The page has no secrets, and a load balancer reads the health.
HttpAccess access_of(const ServiceOptions& options) {
  return {.routes = {{"GET", "/", true},
                     {"GET", "/health", true},
                     {"GET", "/metrics"},
                     {"GET", "/v1/models"},
                     {"GET", "/tokenizer_info"},
                     {"POST", "/tokenize"},
                     {"POST", "/detokenize"},
                     {"POST", "/v1/completions"},
                     {"POST", "/v1/chat/completions"}},
          .key = options.api_key,
          .cors_origin = options.cors_origin,
          .cors_remedy = "; --cors allows it"};
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

}  // namespace

HttpService::HttpService(InferenceEngine& engine, std::unique_ptr<Tokenizer> tokenizer,
                         PromptSettings settings, ServiceOptions options)
    : HttpHandler(access_of(options)),
      options_(std::move(options)),
      engine_options_(engine.options()),
      config_(engine.config()),
      tokenizer_(std::move(tokenizer)),
      settings_(std::move(settings)),
      end_of_text_(settings_.eos),
      started_(unix_time()),
      slots_(std::make_shared<SequenceSlots>(engine_options_.max_sequences + options_.max_queue)),
      engine_(engine) {
  if (!end_of_text_.empty() || !tokenizer_) return;
  std::optional<std::int32_t> id = tokenizer_->end_of_document();
  if (config_.eos_token >= 0) id = static_cast<std::int32_t>(config_.eos_token);
  if (id) end_of_text_ = TextOutput(tokenizer_.get(), {}).add(*id);
}

HttpService::~HttpService() = default;

HttpReply HttpService::handle(const HttpRequest& request, std::function<bool()> gone) {
  const std::string name = has_route(request.path) ? request.path : "other";
  const auto limit = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.request_timeout_s));
  Exchange exchange{
      .gone = std::move(gone), .deadline = Clock::now() + limit, .aborting = aborting()};
  HttpReply reply = reply_to(request, [&] { return route(request, exchange); });
  if (!options_.cors_origin.empty())
    reply.headers.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
  if (!reply.stream) {
    metrics_.add_request(name, reply.status, exchange.elapsed_s());
    return reply;
  }
  reply.stream = [this, name, status = reply.status, exchange,
                  inner = std::move(reply.stream)](const HttpReply::Write& write) {
    inner(write);
    metrics_.add_request(name, status, exchange.elapsed_s());
  };
  return reply;
}

HttpReply HttpService::route(const HttpRequest& request, Exchange& exchange) {
  const std::string& path = request.path;
  if (request.method == "OPTIONS")
    return {.status = 204,
            .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                        {"Access-Control-Allow-Headers", "Authorization, Content-Type"},
                        {"Access-Control-Max-Age", "600"}}};
  if (path == "/") return page_reply(serve_page_html());
  if (path == "/health") return health();
  if (path == "/metrics") return metrics();
  if (path == "/v1/models") return models();
  if (path == "/tokenizer_info") return tokenizer_info();
  if (path == "/tokenize") return tokenize(request.body);
  if (path == "/detokenize") return detokenize(request.body);
  if (path == "/v1/completions") return completions(request.body, exchange);
  return chat(request.body, exchange);
}

HttpReply HttpService::health() const {
  const bool failed = engine_.failure().has_value();
  HttpReply reply = json_reply({{"status", failed       ? "failed"
                                           : draining() ? "shutting down"
                                                        : "ok"}});
  if (failed || draining()) reply.status = 503;
  return reply;
}

HttpReply HttpService::metrics() const {
  return {
      .body = metrics_.text(engine_.counters(), {.sequences = slots_->used(),
                                                 .connections = connections(),
                                                 .max_sequences = engine_options_.max_sequences}),
      .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

HttpReply HttpService::models() const {
  const OrderedJson model = {{"id", options_.name},
                             {"object", "model"},
                             {"created", started_},
                             {"owned_by", "kintsugi"},
                             {"max_model_len", engine_options_.max_length}};
  return json_reply({{"object", "list"}, {"data", OrderedJson::array({model})}});
}

// ---- tokens

const Tokenizer& HttpService::tokenizer() const {
  if (!tokenizer_)
    throw HttpError(400, "no_tokenizer", "this model has no tokenizer: give prompts as token ids");
  return *tokenizer_;
}

std::shared_ptr<Tokenizer> HttpService::take_tokenizer() {
  std::unique_ptr<Tokenizer> taken;
  {
    const std::lock_guard lock(spare_mutex_);
    if (!spare_.empty()) {
      taken = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!taken) taken = tokenizer().clone();
  const auto give_back = [this](Tokenizer* used) {
    const std::lock_guard lock(spare_mutex_);
    spare_.emplace_back(used);
  };
  return {taken.release(), give_back};
}

HttpReply HttpService::tokenizer_info() const {
  return json_reply({{"tokenizer_class", tokenizer().description()},
                     {"vocab_size", tokenizer().vocab_size()},
                     {"bos_token", text_or_null(settings_.bos)},
                     {"eos_token", text_or_null(end_of_text_)},
                     {"pad_token", text_or_null(settings_.pad)},
                     {"add_bos_token", settings_.adds_bos},
                     {"model_max_length", engine_options_.max_length},
                     {"chat_template", text_or_null(settings_.chat_template)}});
}

HttpReply HttpService::tokenize(const std::string& body) {
  const TokenizeBody parsed = parse_tokenize_body(body);
  std::vector<std::int32_t> ids;
  if (!parsed.messages.empty())
    ids = encode_chat(parsed.messages);
  else if (parsed.add_special_tokens)
    ids = encode(parsed.prompt, false).tokens;
  else
    take_tokenizer()->encode(parsed.prompt, ids, SpecialTokens::Honoured);
  return json_reply({{"tokens", ids},
                     {"count", ids.size()},
                     {"max_model_len", engine_options_.max_length},
                     {"max_tokens", options_.limits.max_tokens}});
}

HttpReply HttpService::detokenize(const std::string& body) const {
  const std::vector<std::int32_t> ids = parse_detokenize_body(body);
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= tokenizer().vocab_size())
      bad_field(fmt::format("tokens[{}]", i),
                fmt::format("{} is not one of the {} tokens", ids[i], tokenizer().vocab_size()));
  tokenizer().decode(ids, text);
  return json_reply({{"prompt", text}});
}

EncodedPrompt HttpService::encode(const PromptInput& prompt, bool with_text) {
  if (const auto* ids = std::get_if<std::vector<std::int32_t>>(&prompt)) {
    if (std::ssize(*ids) > engine_options_.max_length)
      throw HttpError(
          400, "context_length_exceeded",
          fmt::format("the prompt has {} tokens, more than the {} of this server (--max-length)",
                      ids->size(), engine_options_.max_length));
    EncodedPrompt result{.tokens = *ids};
    if (!with_text) return result;
    TokenTexts texts(tokenizer_.get());
    for (const std::int32_t id : *ids) result.text += texts.add(id).bytes;
    return result;
  }
  const std::string& text = std::get<std::string>(prompt);
  const auto own = take_tokenizer();
  std::vector<std::int32_t> plain;
  own->encode(text, plain, SpecialTokens::Honoured);
  EncodedPrompt result{.tokens = PromptEncoder(*own, settings_, options_.bos, config_.bos_token)
                                     .encode(text, SpecialTokens::Honoured),
                       .text = text};
  result.added_bos = result.tokens.size() > plain.size();
  return result;
}

}  // namespace kintsugi
