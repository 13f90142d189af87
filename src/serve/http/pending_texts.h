#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/engine_thread.h"
#include "serve/generation.h"

namespace kintsugi {

// Counts the sequences that were given to the engine and have not ended, up to a limit.
class SequenceSlots {
 public:
  explicit SequenceSlots(std::int64_t limit) : limit_(limit) {}
  // Takes all or none. A request larger than the limit is accepted when nothing else is there.
  bool take(std::int64_t count);
  void release(std::int64_t count) { used_ -= count; }
  std::int64_t used() const { return used_; }

 private:
  std::int64_t limit_;
  std::atomic<std::int64_t> used_ = 0;
};

// A piece of one of the texts, the scores of its prompt, or its end.
struct TextEvent {
  std::size_t text = 0;  // its number in the request
  std::string piece = {};
  std::vector<SampledToken> scores = {};
  std::optional<SampledToken> token = {};  // that the piece was generated with
  std::optional<GenerationResult> end = {};
};

// The texts of one request while the engine generates them. Listeners only fill a queue; the thread
// of the request empties it. The destructor cancels what has not ended.
class PendingTexts {
 public:
  using Clock = std::chrono::steady_clock;

  // With `pieces`, next() returns scores and every token; otherwise only the end of each text.
  // HttpError 429 if there is no room, UserError if the model cannot compute a request.
  PendingTexts(EngineThread& engine, std::shared_ptr<SequenceSlots> slots,
               const Tokenizer* tokenizer, std::vector<GenerationRequest> requests, bool pieces);
  ~PendingTexts();
  PendingTexts(const PendingTexts&) = delete;
  PendingTexts& operator=(const PendingTexts&) = delete;

  // Waits until `deadline`. HttpError if a text has failed, or if its pieces were not fetched in
  // time.
  std::optional<TextEvent> next(Clock::time_point deadline);
  bool ended() const;  // all texts, and next() has returned everything
  std::optional<Clock::time_point> first_token() const;

 private:
  struct State;
  EngineThread& engine_;
  std::shared_ptr<State> state_;  // shared with listeners, which may outlive this object
  std::vector<InferenceEngine::Id> ids_;
};

}  // namespace kintsugi
