#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "core/progress.h"
#include "model/config.h"
#include "model/files/stored_model.h"
#include "serve/sampling.h"

namespace kintsugi {

struct InferenceOptions {
  DType precision = DType::F32;
  std::int64_t max_length = 0;     // tokens of a sequence; 0: the positions of the model
  std::int64_t max_sequences = 0;  // computed at the same time; 0: 16 on a CPU, 64 on a GPU
  // The most tokens of one step; 0: 256 on a CPU and 4096 on a GPU, deterministic 64 and 256.
  std::int64_t step_tokens = 0;
  std::int64_t cache_tokens = 0;   // of all sequences together; 0: what they can need, or memory
  std::int64_t memory_shares = 1;  // processes that share the backend's memory
  bool reuse_prefixes = true;      // keep the cached tokens of finished sequences for others
  // Every step computes the same number of rows, so that no result depends on what else is computed
  // in the same step. Slower for few sequences.
  bool deterministic = false;
  std::filesystem::path adapter = {};  // a PEFT directory that is merged into the weights
  UnusedWeights unused = UnusedWeights::Refuse;
  ProgressCall loading = {};  // bytes of the weights
};

// One sequence to compute. Its result depends on no other request, up to the rounding of sums.
struct InferenceRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 0;  // to generate after the prompt; 0: only score it
  SamplingOptions sampling = {};
  // The first prompt token whose log-probability is computed, at least 1; empty: none.
  std::optional<std::int64_t> score_from = {};
  std::vector<std::int32_t> stop_tokens = {};  // end the sequence, besides the end-of-text token
};

// Why a sequence ended: at a token that ends it, after max_tokens, because on_token returned false
// or cancel() was called, or because of an error.
enum class InferenceEnd : std::uint8_t { StopToken, Length, Stopped, Failed };

// What happens to a request, in this order. Called by InferenceEngine::step().
struct InferenceListener {
  // Once, if the request has a score_from: the tokens from there on. `top` has sampling.logprobs
  // tokens, at least the most likely one.
  std::function<void(const std::vector<SampledToken>&)> on_scores = {};
  // For each generated token, except one that ends the sequence. False: no more tokens.
  std::function<bool(const SampledToken&)> on_token = {};
  // Last. `error` is empty unless the end is Failed.
  std::function<void(InferenceEnd end, const std::string& error)> on_end = {};
};

struct InferenceCounters {
  std::int64_t waiting = 0, running = 0;            // sequences, now
  std::int64_t finished = 0, cancelled = 0;         // sequences so far; cancelled: also failed ones
  std::int64_t prompt_tokens = 0, new_tokens = 0;   // computed so far, without reused ones
  std::int64_t reused_tokens = 0;                   // of prompts, found in the cache
  std::int64_t preemptions = 0;                     // sequences set back for lack of cache
  std::int64_t cache_tokens = 0, cache_in_use = 0;  // size, and tokens that running sequences use
  std::int64_t steps = 0;
};

// Scores and generates many sequences at the same time. Requests join and leave between steps. Not
// thread-safe: EngineThread is.
//
// With several tensor ranks, every rank creates an engine. Rank 0 is used as described here; the
// others call follow(), which returns when the engine of rank 0 is destroyed.
class InferenceEngine {
 public:
  using Id = std::uint64_t;

  // Loads a Hugging Face directory of a supported family. UserError with the sizes if there is too
  // little memory.
  InferenceEngine(Backend& backend, Communicator& tensor, const std::filesystem::path& directory,
                  const InferenceOptions& options);
  ~InferenceEngine();
  InferenceEngine(const InferenceEngine&) = delete;
  InferenceEngine& operator=(const InferenceEngine&) = delete;

  const ModelConfig& config() const;
  const InferenceOptions& options() const;  // without zeros

  // UserError if a model cannot generate max_tokens after a prompt.
  static void check_prompt(const ModelConfig& config, std::span<const std::int32_t> prompt,
                           std::int64_t max_tokens);
  // UserError if this engine cannot compute the request.
  void check(const InferenceRequest& request) const;
  // Calls check().
  Id submit(InferenceRequest request, InferenceListener listener);
  // Ends a request as Stopped, from the next step on. Does nothing if it has ended.
  void cancel(Id id);

  // Computes the next tokens of the running requests. Returns false if there is nothing to do.
  bool step();
  void run() {  // until all requests have ended
    while (step()) continue;
  }
  void follow();

  InferenceCounters counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kintsugi
