#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "comm/communicator.h"
#include "serve/inference_engine.h"

namespace kintsugi {

// A model with its own backend. Each request is computed alone, nothing is reused.
struct LoadedModel {
  using Tokens = std::vector<std::int32_t>;

  explicit LoadedModel(const std::filesystem::path& directory, DType precision = DType::F32)
      : backend(make_cpu_backend(1)),
        engine(*backend, alone, directory,
               {.precision = precision,
                .max_length = 600,
                .max_sequences = 1,
                .reuse_prefixes = false}) {}

  Tokens generate(const Tokens& prompt, std::int64_t count,
                  const SamplingOptions& options = {.temperature = 0}) {
    Tokens tokens;
    engine.submit({.prompt = prompt, .max_tokens = count, .sampling = options},
                  {.on_token = [&](const SampledToken& token) {
                    tokens.push_back(token.id);
                    return true;
                  }});
    engine.run();
    return tokens;
  }

  // The log-probability of each token except the first, given the tokens before it.
  std::vector<double> log_probabilities(const Tokens& text) {
    std::vector<double> values;
    engine.submit({.prompt = text, .score_from = 1},
                  {.on_scores = [&](const std::vector<SampledToken>& scores) {
                    for (const SampledToken& token : scores) values.push_back(*token.logprob);
                  }});
    engine.run();
    return values;
  }

  // The log-probability of every token of the vocabulary after `text`: one full forward each.
  std::vector<float> next_log_probabilities(Tokens text) {
    std::vector<float> all;
    text.push_back(0);
    for (text.back() = 0; text.back() < engine.config().vocab_size; ++text.back())
      all.push_back(static_cast<float>(log_probabilities(text).back()));
    return all;
  }

  std::unique_ptr<Backend> backend;
  LocalCommunicator alone{"tensor", backend.get()};
  InferenceEngine engine;
};

}  // namespace kintsugi
