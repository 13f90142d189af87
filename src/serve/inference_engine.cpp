#include "serve/inference_engine.h"

#include <algorithm>
#include <deque>

#include "core/error.h"
#include "serve/language_model.h"

namespace kintsugi {

struct InferenceEngine::State {
  struct Waiting {
    Id id;
    InferenceRequest request;
    InferenceListener listener;
  };
  State(Backend& backend, const std::filesystem::path& directory, const InferenceOptions& given)
      : model(backend, directory, given.precision), options(given) {
    if (options.max_length == 0) options.max_length = model.config().max_positions;
  }
  LanguageModel model;
  InferenceOptions options;
  std::deque<Waiting> waiting;
  InferenceCounters counters;
  Id next_id = 1;
};

InferenceEngine::InferenceEngine(Backend& backend, Communicator&,
                                 const std::filesystem::path& directory,
                                 const InferenceOptions& options)
    : state_(std::make_unique<State>(backend, directory, options)) {}
InferenceEngine::~InferenceEngine() = default;

const ModelConfig& InferenceEngine::config() const { return state_->model.config(); }
const InferenceOptions& InferenceEngine::options() const { return state_->options; }

void InferenceEngine::check(const InferenceRequest& request) const {
  LanguageModel::check_prompt(config(), request.prompt,
                              std::max<std::int64_t>(1, request.max_tokens));
}

InferenceEngine::Id InferenceEngine::submit(InferenceRequest request, InferenceListener listener) {
  check(request);
  state_->waiting.push_back({state_->next_id, std::move(request), std::move(listener)});
  return state_->next_id++;
}

void InferenceEngine::cancel(Id id) {
  auto& waiting = state_->waiting;
  for (auto i = waiting.begin(); i != waiting.end(); ++i)
    if (i->id == id) {
      i->listener.on_end(InferenceEnd::Stopped, "");
      waiting.erase(i);
      return;
    }
}

bool InferenceEngine::step() {
  State& s = *state_;
  if (s.waiting.empty()) return false;
  const State::Waiting next = std::move(s.waiting.front());
  s.waiting.pop_front();
  const InferenceRequest& r = next.request;
  InferenceEnd end = InferenceEnd::Length;
  std::string error;
  try {
    if (r.score_from)
      next.listener.on_scores(
          s.model.score(r.prompt, *r.score_from, std::max<std::int64_t>(1, r.sampling.logprobs)));
    bool stopped = false;
    if (r.max_tokens > 0) {
      const Finish finish =
          s.model.generate(r.prompt, r.max_tokens, r.sampling, [&](const SampledToken& token) {
            const auto& ends = r.stop_tokens;
            stopped = std::find(ends.begin(), ends.end(), token.id) != ends.end();
            return !stopped && next.listener.on_token(token);
          });
      end = stopped || finish == Finish::EndOfText ? InferenceEnd::StopToken
            : finish == Finish::Length             ? InferenceEnd::Length
                                                   : InferenceEnd::Stopped;
    }
  } catch (const std::exception& e) {
    end = InferenceEnd::Failed;
    error = e.what();
  }
  ++s.counters.finished;
  next.listener.on_end(end, error);
  return true;
}

void InferenceEngine::follow() {}

InferenceCounters InferenceEngine::counters() const {
  InferenceCounters result = state_->counters;
  result.waiting = std::ssize(state_->waiting);
  return result;
}

}  // namespace kintsugi
