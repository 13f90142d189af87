#include "serve/http/service.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "serve/http/exchange.h"
#include "serve/http/page.h"

namespace kintsugi {
namespace {

const std::vector<std::pair<const char*, const char*>> kRoutes = {{"GET", "/"},
                                                                  {"GET", "/health"},
                                                                  {"GET", "/metrics"},
                                                                  {"GET", "/v1/models"},
                                                                  {"GET", "/tokenizer_info"},
                                                                  {"POST", "/tokenize"},
                                                                  {"POST", "/detokenize"},
                                                                  {"POST", "/v1/completions"},
                                                                  {"POST", "/v1/chat/completions"}};

// The time does not depend on where they differ.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
  return difference == 0;
}

// Without the port, in lower case.
std::string host_name(std::string_view host) {
  const std::size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  std::string name(host.substr(0, host.starts_with('[') && end != host.npos ? end + 1 : end));
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return name;
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

}  // namespace

HttpService::HttpService(InferenceEngine& engine, std::unique_ptr<Tokenizer> tokenizer,
                         PromptSettings settings, ServiceOptions options)
    : options_(std::move(options)),
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
  const auto known = [&](const auto& route) { return request.path == route.second; };
  const std::string name =
      std::any_of(kRoutes.begin(), kRoutes.end(), known) ? request.path : "other";
  const auto limit = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.request_timeout_s));
  Exchange exchange{
      .gone = std::move(gone), .deadline = Clock::now() + limit, .aborting = aborting_};
  HttpReply reply;
  try {
    reply = route(request, exchange);
  } catch (const HttpError& error) {
    reply = error_reply(error);
  } catch (const UserError& error) {
    reply = error_reply(HttpError(400, "invalid_request", error.what()));
  } catch (const std::exception& error) {
    log_warning("{} {}: {}", request.method, name, error.what());
    reply = error_reply(HttpError(500, "internal_error", error.what()));
  }
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

bool HttpService::serves_host(const std::string& host) const {
  if (!local_host_ || host.empty()) return true;  // browsers always send one
  const std::string name = host_name(host);
  const bool six = local_host_->find(':') != local_host_->npos;
  return name == "localhost" || name == "[::1]" ||
         name == host_name(six ? "[" + *local_host_ + "]" : *local_host_) ||
         (name.starts_with("127.") && name.find_first_not_of("0123456789.") == name.npos);
}

void HttpService::check_client(const HttpRequest& request) const {
  if (!serves_host(request.host))
    throw HttpError(403, "forbidden_host",
                    fmt::format("requests for the host {} are refused: this server is for its own "
                                "machine; ask for 127.0.0.1, or listen elsewhere with --host",
                                printable(request.host)));
  // A web page of another site must not use a server that only this machine reaches.
  const bool same_site = request.origin.empty() || request.origin == "http://" + request.host ||
                         request.origin == "https://" + request.host ||
                         options_.cors_origin == "*" || options_.cors_origin == request.origin;
  if (!same_site)
    throw HttpError(403, "forbidden_origin",
                    fmt::format("pages of {} may not use this server; --cors allows it",
                                printable(request.origin)));
  // A page that has no secrets, and what a load balancer reads.
  if (options_.api_key.empty() || request.path == "/health" || request.path == "/") return;
  const std::string_view scheme = "Bearer ";
  const std::string_view given = request.authorization;
  if (!given.starts_with(scheme) || !same_secret(given.substr(scheme.size()), options_.api_key))
    throw HttpError(401, "invalid_api_key",
                    "a valid API key is required: send the header Authorization: Bearer KEY");
}

std::optional<HttpReply> HttpService::refusal(const HttpRequest& request) const {
  try {
    const auto same_path = [&](const auto& route) { return request.path == route.second; };
    const auto found = std::find_if(kRoutes.begin(), kRoutes.end(), same_path);
    if (found == kRoutes.end())
      throw HttpError(404, "not_found", fmt::format("there is no {}", printable(request.path)));
    if (request.method == "OPTIONS" && !options_.cors_origin.empty()) return {};
    check_client(request);
    const std::string needed = found->first;
    if (request.method == needed || (request.method == "HEAD" && needed == "GET")) return {};
    HttpReply reply = error_reply(
        HttpError(405, "method_not_allowed", fmt::format("{} needs {}", request.path, needed)));
    reply.headers.emplace_back("Allow", needed);
    return reply;
  } catch (const HttpError& error) {
    return error_reply(error);
  }
}

HttpReply HttpService::route(const HttpRequest& request, Exchange& exchange) {
  if (auto refused = refusal(request)) return std::move(*refused);
  const std::string& path = request.path;
  if (request.method == "OPTIONS")
    return {.status = 204,
            .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                        {"Access-Control-Allow-Headers", "Authorization, Content-Type"},
                        {"Access-Control-Max-Age", "600"}}};
  if (path == "/") return page_reply();
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
  HttpReply reply = json_reply({{"status", failed      ? "failed"
                                           : draining_ ? "shutting down"
                                                       : "ok"}});
  if (failed || draining_) reply.status = 503;
  return reply;
}

HttpReply HttpService::metrics() const {
  return {
      .body = metrics_.text(engine_.counters(), {.sequences = slots_->used(),
                                                 .connections = connections_(),
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
  if (parsed.add_special_tokens)
    ids = encode(parsed.prompt, false).tokens;
  else
    take_tokenizer()->encode(parsed.prompt, ids, SpecialTokens::Honoured);
  return json_reply(
      {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", engine_options_.max_length}});
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
      throw HttpError(400, "context_length_exceeded",
                      fmt::format("the prompt has {} tokens, more than the {} of this server "
                                  "(--max-length)",
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
