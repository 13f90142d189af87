#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "cli/job.h"
#include "data/tokenizers/tokenizer.h"
#include "eval/scoring_model.h"
#include "serve/inference_engine.h"

namespace CLI {
class App;
}

namespace kintsugi {

// How a model is computed.
struct EngineArguments {
  std::string precision = "fp32";
  std::int64_t threads = 0, batch = 16, max_length = 0, step_tokens = 256, cache_tokens = 0;
  std::int64_t tensor = 1;  // ranks of one model
  bool fast = false;        // not deterministic
};
void add_engine_options(CLI::App& command, EngineArguments& arguments);

// Loads a model on all ranks of the job: the ranks / `tensor` copies of it share the requests.
// Calls `work` on the first rank of each copy. Collective.
using ModelWork = std::function<void(ScoringModel& model, Tokenizer& tokenizer)>;
void with_model(Job& job, const EngineArguments& arguments, const std::filesystem::path& directory,
                const ModelWork& work);

}  // namespace kintsugi
