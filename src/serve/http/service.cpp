#include "serve/http/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "core/log.h"
#include "core/table.h"
#include "serve/http/page.h"
#include "serve/http/replies.h"

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

constexpr auto kPatience = std::chrono::milliseconds(200);  // between looks at the client

std::uint64_t random_number() {
  static thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

std::int64_t unix_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

HttpReply json_reply(const OrderedJson& json) { return {.body = json_line(json) + "\n"}; }

}  // namespace

// A request while it is answered.
struct HttpService::Exchange {
  std::function<bool()> gone;
  Clock::time_point start = Clock::now(), deadline;
  const std::atomic<bool>& aborting;

  // The next event of the texts. Looks at the client and the clock while it waits.
  TextEvent next(PendingTexts& texts) const;
  double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

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
                     {"bos_token", Cell::or_missing(settings_.bos).value},
                     {"eos_token", Cell::or_missing(end_of_text_).value},
                     {"pad_token", Cell::or_missing(settings_.pad).value},
                     {"add_bos_token", settings_.adds_bos},
                     {"model_max_length", engine_options_.max_length},
                     {"chat_template", Cell::or_missing(settings_.chat_template).value}});
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

// ---- texts

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

// ---- metrics

namespace {

PrometheusHistogram seconds(std::vector<double> bounds) {
  const std::size_t counts = bounds.size() + 1;
  return {.bounds = std::move(bounds), .counts = std::vector<std::uint64_t>(counts)};
}

void add_value(PrometheusHistogram& histogram, double value) {
  const auto bound = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value);
  ++histogram.counts[static_cast<std::size_t>(bound - histogram.bounds.begin())];
  histogram.sum += value;
}

}  // namespace

ServerMetrics::ServerMetrics()
    : durations_(seconds({0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300})),
      first_token_(seconds({0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30})),
      per_token_(seconds({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1})) {}

void ServerMetrics::add_request(const std::string& route, int status, double duration_s) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
  add_value(durations_, duration_s);
}

void ServerMetrics::add_first_token(double duration_s) {
  const std::lock_guard lock(mutex_);
  add_value(first_token_, duration_s);
}

void ServerMetrics::add_token_time(double duration_s) {
  const std::lock_guard lock(mutex_);
  add_value(per_token_, duration_s);
}

std::string ServerMetrics::text(const InferenceCounters& engine, const Gauges& gauges) const {
  std::vector<PrometheusMetric> metrics;
  const auto add = [&](const char* name, const char* help, std::int64_t value) {
    metrics.push_back({name, help, {{{}, static_cast<double>(value)}}, {}});
  };
  {
    const std::lock_guard lock(mutex_);
    PrometheusMetric requests{"kintsugi_requests_total", "HTTP requests", {}, {}};
    for (const auto& [key, count] : requests_)
      requests.samples.push_back(
          {{{"route", key.first}, {"code", std::to_string(key.second)}}, double(count)});
    metrics.push_back(std::move(requests));
    metrics.push_back({"kintsugi_request_seconds", "Time of HTTP requests", {}, durations_});
    metrics.push_back({"kintsugi_time_to_first_token_seconds",
                       "From the request to its first token, with the time in the queue",
                       {},
                       first_token_});
    metrics.push_back({"kintsugi_time_per_token_seconds",
                       "Mean time of a token after the first, for each text",
                       {},
                       per_token_});
  }
  add("kintsugi_connections", "Open connections", gauges.connections);
  add("kintsugi_sequences_open", "Sequences that wait or run", gauges.sequences);
  add("kintsugi_sequences_limit", "Sequences computed at the same time", gauges.max_sequences);
  add("kintsugi_sequences_waiting", "Sequences that wait for the engine", engine.waiting);
  add("kintsugi_sequences_running", "Sequences that the engine computes", engine.running);
  add("kintsugi_sequences_finished_total", "Sequences that ended by themselves", engine.finished);
  add("kintsugi_sequences_cancelled_total", "Sequences cancelled or failed", engine.cancelled);
  add("kintsugi_prompt_tokens_total", "Prompt tokens computed", engine.prompt_tokens);
  add("kintsugi_generated_tokens_total", "Tokens generated", engine.new_tokens);
  add("kintsugi_reused_tokens_total", "Prompt tokens found in the cache", engine.reused_tokens);
  add("kintsugi_preemptions_total", "Sequences set back for lack of cache", engine.preemptions);
  add("kintsugi_cache_tokens", "Size of the key-value cache", engine.cache_tokens);
  add("kintsugi_cache_tokens_in_use", "Of running sequences", engine.cache_in_use);
  add("kintsugi_engine_steps_total", "Steps of the engine", engine.steps);
  return prometheus_text(metrics);
}

}  // namespace kintsugi
