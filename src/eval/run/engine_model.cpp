#include "eval/run/engine_model.h"

#include <algorithm>
#include <set>

#include "core/error.h"

namespace kintsugi {
namespace {

// Computes many requests, of which only some are in the engine at a time.
class RequestQueue {
 public:
  RequestQueue(InferenceEngine& engine, const ScoringProgress& progress)
      : engine_(engine), progress_(progress) {}
  ~RequestQueue() {  // after an error: listeners refer to variables of the caller
    try {
      for (const InferenceEngine::Id id : std::set(running_)) engine_.cancel(id);
      if (!running_.empty()) engine_.run();
    } catch (const std::exception&) {  // the first error is reported
    }
  }
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  // make(i) returns the TextGeneration of request i.
  template <class Make>
  void run(std::size_t count, Make&& make) {
    const auto most = static_cast<std::size_t>(engine_.options().max_sequences) * 4 + 1;
    std::size_t next = 0, reported = 0;
    for (;;) {
      while (next < count && running_.size() < most) submit(make(next++));
      const bool worked = engine_.step();
      if (!error_.empty()) failure("{}", error_);
      if (progress_ && ended_ > reported) progress_(ended_ - reported);
      reported = ended_;
      if (!worked && next == count) break;
    }
    KINTSUGI_CHECK(ended_ == count, "{} of {} requests have ended", ended_, count);
  }

 private:
  void submit(TextGeneration generation) {
    const auto id = std::make_shared<InferenceEngine::Id>(0);
    auto on_end = std::move(generation.listener.on_end);
    generation.listener.on_end = [this, id, on_end](InferenceEnd end, const std::string& error) {
      running_.erase(*id);
      ++ended_;
      if (end == InferenceEnd::Failed && error_.empty()) error_ = error.empty() ? "failed" : error;
      if (on_end) on_end(end, error);
    };
    *id = engine_.submit(std::move(generation.request), std::move(generation.listener));
    running_.insert(*id);
  }

  InferenceEngine& engine_;
  const ScoringProgress& progress_;
  std::set<InferenceEngine::Id> running_;
  std::size_t ended_ = 0;
  std::string error_;
};

ContinuationScore score_of(const std::vector<SampledToken>& tokens) {
  std::vector<double> values, largest;
  for (const SampledToken& token : tokens) {
    KINTSUGI_CHECK(token.logprob && !token.top.empty(), "token {} has no score", token.id);
    values.push_back(*token.logprob);
    largest.push_back(token.top.front().logprob);
  }
  return score_continuation(values, largest);
}

SamplingOptions sampling_of(const TextRequest& request) {
  const GenerationOptions& options = request.options;
  if (!options.do_sample) return {.temperature = 0};
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .seed = request.seed};
}

}  // namespace

std::int32_t prefix_token_of(const Tokenizer& tokenizer, const std::string& bos,
                             const ModelConfig& config) {
  if (!bos.empty())
    if (const auto id = tokenizer.token_id(bos)) return *id;
  if (config.bos_token >= 0) return static_cast<std::int32_t>(config.bos_token);
  if (config.eos_token >= 0) return static_cast<std::int32_t>(config.eos_token);
  if (const auto id = tokenizer.end_of_document()) return *id;
  std::vector<std::int32_t> ids;
  tokenizer.clone()->encode("\n", ids);
  if (ids.empty()) user_error("the tokenizer has no token for a line end");
  return ids.front();
}

TokenIds EngineModel::encode(const std::string& text) {
  TokenIds ids;
  tokenizer_.encode(text, ids, SpecialTokens::Honoured);
  return ids;
}

std::string EngineModel::decode(std::span<const std::int32_t> ids) {
  std::string text;
  tokenizer_.decode(ids, text, SpecialTokens::AsText);
  return text;
}

// The engine reads all tokens of a prompt, also the last one, which is only predicted.
std::size_t EngineModel::max_length() const {
  return static_cast<std::size_t>(engine_.options().max_length - 1);
}

std::vector<ContinuationScore> EngineModel::score(std::span<const TokenPair> pairs,
                                                  const ScoringProgress& progress) {
  std::vector<ContinuationScore> scores(pairs.size());
  RequestQueue queue(engine_, progress);
  queue.run(pairs.size(), [&](std::size_t i) {
    TextGeneration one;
    one.request.prompt = pairs[i].context;
    one.request.prompt.insert(one.request.prompt.end(), pairs[i].continuation.begin(),
                              pairs[i].continuation.end());
    one.request.score_from = std::ssize(pairs[i].context);
    one.request.sampling = {.temperature = 0, .logprobs = 1};
    one.listener.on_scores = [&scores, i](const std::vector<SampledToken>& tokens) {
      scores[i] = score_of(tokens);
    };
    return one;
  });
  return scores;
}

std::vector<std::string> EngineModel::generate(std::span<const TextRequest> requests,
                                               const ScoringProgress& progress) {
  std::vector<std::string> texts(requests.size());
  RequestQueue queue(engine_, progress);
  queue.run(requests.size(), [&](std::size_t i) {
    return make_text_generation(
        &tokenizer_,
        {.prompt = requests[i].prompt,
         .max_tokens = requests[i].options.max_gen_toks,
         .sampling = sampling_of(requests[i]),
         .stop = requests[i].options.until},
        [](std::string_view) { return true; },
        [&texts, i](GenerationResult result) { texts[i] = std::move(result.text); });
  });
  return texts;
}

}  // namespace kintsugi
