#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/prompt_encoder.h"
#include "serve/engine_thread.h"
#include "serve/http/http_message.h"
#include "serve/http/metrics.h"
#include "serve/http/pending_texts.h"
#include "serve/http/request_bodies.h"
#include "serve/http/text_calls.h"

namespace kintsugi {

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
class HttpService {
 public:
  using Clock = std::chrono::steady_clock;

  // `tokenizer` may be nullptr: then prompts are token ids. `settings` are its own.
  HttpService(InferenceEngine& engine, std::unique_ptr<Tokenizer> tokenizer,
              PromptSettings settings, ServiceOptions options);
  ~HttpService();

  // Never throws. `gone` says whether the client has left; it is called now and then while the
  // reply is computed, also by the stream of the reply.
  HttpReply handle(const HttpRequest& request, std::function<bool()> gone);

  // The reply to a request that can be refused without its body: wrong path, method, key or site.
  std::optional<HttpReply> refusal(const HttpRequest& request) const;

  void drain() { draining_ = true; }  // refuse new work; what runs goes on
  void abort() { aborting_ = true; }  // end what runs, with an error
  bool draining() const { return draining_; }
  std::int64_t open_sequences() const { return slots_->used(); }
  std::optional<std::string> failure() const { return engine_.failure(); }  // of the engine
  InferenceCounters counters() const { return engine_.counters(); }
  // The server listens on this name or address of the machine itself: refuse requests for other
  // hosts. Otherwise a web page could have its own name resolved to this machine.
  void set_local_host(std::string host) { local_host_ = std::move(host); }
  void set_connections(std::function<std::int64_t()> count) { connections_ = std::move(count); }

 private:
  struct Exchange;  // a request while it is answered
  struct Answer;

  HttpReply route(const HttpRequest& request, Exchange& exchange);
  void check_client(const HttpRequest& request) const;
  bool serves_host(const std::string& host) const;
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
  std::function<std::int64_t()> connections_ = [] { return 0; };
  std::optional<std::string> local_host_;
  std::atomic<bool> draining_ = false, aborting_ = false;
  std::mutex spare_mutex_;
  std::vector<std::unique_ptr<Tokenizer>> spare_;
  EngineThread engine_;
};

}  // namespace kintsugi
