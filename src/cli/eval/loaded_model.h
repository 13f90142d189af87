#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "cli/engine.h"
#include "data/tokenizers/tokenizer.h"
#include "eval/scoring_model.h"

namespace CLI {
class App;
}

namespace kintsugi {

// The options of an evaluation: deterministic, one rank per model.
void add_eval_engine_options(CLI::App& command, EngineArguments& arguments);

// Loads a model on all ranks of the job: the ranks / `tensor` copies of it share the requests.
// Calls `work` on the first rank of each copy. Collective.
using ModelWork = std::function<void(ScoringModel& model, Tokenizer& tokenizer)>;
void with_model(Job& job, const EngineArguments& arguments, const ModelFiles& files,
                const ModelWork& work);

}  // namespace kintsugi
