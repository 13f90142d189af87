#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/prompt_encoder.h"
#include "http/http_handler.h"
#include "report/prometheus.h"
#include "serve/engine_thread.h"
#include "serve/http/pending_texts.h"
#include "serve/http/request_bodies.h"
#include "serve/http/text_calls.h"
#include "serve/inference_engine.h"

namespace kintsugi {

// Counts what the server does, for /metrics. Thread-safe.
class ServerMetrics {
 public:
  ServerMetrics();

  void add_request(const std::string& route, int status, double duration_s);
  void add_first_token(double duration_s);
  void add_token_time(double duration_s);  // the mean of a text, after its first token

  struct Gauges {
    std::int64_t sequences = 0, connections = 0, max_sequences = 0;
  };
  std::string text(const InferenceCounters& engine, const Gauges& gauges) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> requests_;  // by route and status
  PrometheusHistogram durations_, first_token_, per_token_;
};

struct ServiceOptions {
  std::string name = {};  // of the model
  RequestLimits limits = {};
  std::int64_t max_queue = 1024;  // sequences that wait
  double request_timeout_s = 600;
  std::string api_key = {};      // empty: none
  std::string cors_origin = {};  // empty: other web pages may not use the server
  BosChoice bos = BosChoice::Auto;
  const ChatFormat* format = nullptr;  // nullptr: no chat, because of
  std::string no_chat = {};            // this
};

// Answers HTTP requests about one model, apart from sockets. Thread-safe.
class HttpService : public HttpHandler {
 public:
  using Clock = std::chrono::steady_clock;

  // `tokenizer` may be nullptr: then prompts are token ids. `settings` are its own.
  HttpService(InferenceEngine& engine, std::unique_ptr<Tokenizer> tokenizer,
              PromptSettings settings, ServiceOptions options);
  ~HttpService() override;

  HttpReply handle(const HttpRequest& request, std::function<bool()> gone) override;

  std::int64_t open_sequences() const { return slots_->used(); }
  std::optional<std::string> failure() const { return engine_.failure(); }  // of the engine
  InferenceCounters counters() const { return engine_.counters(); }

 private:
  struct Exchange;  // a request while it is answered
  struct Answer;

  HttpReply route(const HttpRequest& request, Exchange& exchange);
  // `echo`: the prompts are part of the reply.
  HttpReply generate(std::unique_ptr<TextCall> call, const TextParameters& parameters, bool echo,
                     const char* id_prefix, Exchange& exchange);
  void check_reply_size(const std::vector<GenerationRequest>& requests, bool echo) const;
  HttpReply completions(const std::string& body, Exchange& exchange);
  HttpReply chat(const std::string& body, Exchange& exchange);
  HttpReply tokenize(const std::string& body);
  HttpReply detokenize(const std::string& body) const;
  HttpReply tokenizer_info() const;
  HttpReply models() const;
  HttpReply health() const;
  HttpReply metrics() const;
  void check_work(const TextParameters& parameters) const;  // may it be accepted?
  EncodedPrompt encode(const PromptInput& prompt, bool with_text);
  std::vector<std::int32_t> encode_chat(const std::vector<ChatMessage>& messages);
  CallModel call_model() const;
  const Tokenizer& tokenizer() const;  // HttpError if there is none
  // A tokenizer for encoding, which no other thread uses.
  std::shared_ptr<Tokenizer> take_tokenizer();

  ServiceOptions options_;
  InferenceOptions engine_options_;
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  PromptSettings settings_;
  std::string end_of_text_;
  std::int64_t started_;  // seconds since 1970
  std::shared_ptr<SequenceSlots> slots_;
  ServerMetrics metrics_;
  std::mutex spare_mutex_;
  std::vector<std::unique_ptr<Tokenizer>> spare_;
  EngineThread engine_;
};

}  // namespace kintsugi
