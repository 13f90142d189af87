#include "serve/http/pending_texts.h"

#include <condition_variable>
#include <deque>
#include <mutex>

#include "http/http_handler.h"

namespace kintsugi {
namespace {

constexpr std::size_t kMostPieces = 16384;  // of each text that wait for a slow client

}  // namespace

bool SequenceSlots::take(std::int64_t count) {
  std::int64_t used = used_;
  do {
    if (used > 0 && used + count > limit_) return false;
  } while (!used_.compare_exchange_weak(used, used + count));
  return true;
}

struct PendingTexts::State {
  std::shared_ptr<SequenceSlots> slots;
  bool pieces = false;
  std::mutex mutex = {};
  std::condition_variable changed = {};
  std::deque<TextEvent> events = {};
  std::size_t most_events = 0, open = 0;
  bool abandoned = false, overflown = false;
  std::optional<Clock::time_point> first_token = {};

  bool add_piece(std::size_t text, std::string_view piece,
                 const std::optional<SampledToken>& token) {
    const std::lock_guard lock(mutex);
    if (!first_token) first_token = Clock::now();
    if (!pieces) return !abandoned;
    overflown = overflown || events.size() >= most_events;
    if (abandoned || overflown) return false;
    events.push_back({.text = text, .piece = std::string(piece), .token = token});
    changed.notify_all();
    return true;
  }
  void add_scores(std::size_t text, const std::vector<SampledToken>& scores) {
    const std::lock_guard lock(mutex);
    if (!pieces || abandoned) return;
    events.push_back({.text = text, .scores = scores});
    changed.notify_all();
  }
  void add_end(std::size_t text, GenerationResult result) {
    slots->release(1);
    const std::lock_guard lock(mutex);
    --open;
    events.push_back({.text = text, .end = std::move(result)});
    changed.notify_all();
  }
};

PendingTexts::PendingTexts(EngineThread& engine, std::shared_ptr<SequenceSlots> slots,
                           const Tokenizer* tokenizer, std::vector<GenerationRequest> requests,
                           bool pieces)
    : engine_(engine), state_(std::make_shared<State>()) {
  const auto count = static_cast<std::int64_t>(requests.size());
  if (!slots->take(count))
    throw HttpError(429, "queue_full", "the queue of this server is full; try again later");
  state_->slots = std::move(slots);
  state_->pieces = pieces;
  state_->open = requests.size();
  state_->most_events = kMostPieces * requests.size();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto token = std::make_shared<std::optional<SampledToken>>();  // the last one
    const auto state = state_;
    try {
      TextGeneration text = make_text_generation(
          tokenizer, std::move(requests[i]),
          [state, token, i](std::string_view piece) {
            return state->add_piece(i, piece, std::exchange(*token, {}));
          },
          [state, i](GenerationResult result) { state->add_end(i, std::move(result)); });
      text.listener.on_scores = [state, i, inner = std::move(text.listener.on_scores)](
                                    const std::vector<SampledToken>& scores) {
        inner(scores);
        state->add_scores(i, scores);
      };
      text.listener.on_token =
          [token, inner = std::move(text.listener.on_token)](const SampledToken& next) {
            *token = next;
            return inner(next);
          };
      ids_.push_back(engine.submit(std::move(text.request), std::move(text.listener)));
    } catch (...) {
      state_->slots->release(count - static_cast<std::int64_t>(i));  // those that did not start
      for (const InferenceEngine::Id id : ids_) engine_.cancel(id);
      throw;
    }
  }
}

PendingTexts::~PendingTexts() {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->open == 0) return;
    state_->abandoned = true;
  }
  for (const InferenceEngine::Id id : ids_) engine_.cancel(id);
}

std::optional<TextEvent> PendingTexts::next(Clock::time_point deadline) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_until(lock, deadline, [&] { return !state_->events.empty(); });
  if (state_->overflown)
    throw HttpError(408, "slow_client", "the client reads the stream too slowly");
  if (state_->events.empty()) return {};
  TextEvent event = std::move(state_->events.front());
  state_->events.pop_front();
  if (event.end && event.end->finish == FinishReason::Failed)
    throw HttpError(500, "generation_failed", event.end->error);
  if (event.end && event.end->finish == FinishReason::Cancelled)
    throw HttpError(503, "cancelled", "the request was cancelled: the server is shutting down");
  return event;
}

bool PendingTexts::ended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->open == 0 && state_->events.empty();
}

std::optional<PendingTexts::Clock::time_point> PendingTexts::first_token() const {
  const std::lock_guard lock(state_->mutex);
  return state_->first_token;
}

}  // namespace kintsugi
