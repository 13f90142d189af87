#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/job.h"
#include "data/tokenizers/tokenizer.h"
#include "eval/scoring_model.h"
#include "model/adapter/peft_config.h"
#include "serve/inference_engine.h"

namespace CLI {
class App;
}

namespace kintsugi {

// "12, 7 9" -> {12, 7, 9}
std::vector<std::int32_t> parse_token_ids(std::string_view text);
// The tokenizer of a model directory; UserError if it has none.
std::unique_ptr<Tokenizer> load_model_tokenizer(const std::filesystem::path& directory);

// How a model is computed, in commands that score or generate.
struct EngineArguments {
  std::string precision = "fp32";
  std::int64_t threads = 0;
  std::int64_t tensor = 0;  // ranks of one model; 0: all
  std::string adapter;      // a PEFT directory; empty: none
  bool allow_other_base = false, allow_unused_weights = false;
  InferenceOptions engine = {};
};
inline UnusedWeights unused_weights_of(const EngineArguments& arguments) {
  return arguments.allow_unused_weights ? UnusedWeights::Allow : UnusedWeights::Refuse;
}
void add_checkpoint_option(CLI::App& command, std::string& checkpoint);
void add_bos_option(CLI::App& command, std::string& bos, const std::string& texts);
// --precision, --threads and --allow-unused-weights
void add_precision_options(CLI::App& command, EngineArguments& arguments);
// --adapter and --allow-other-base
void add_adapter_option(CLI::App& command, EngineArguments& arguments);
// --adapter and the options of the engine, without --tensor.
void add_engine_options(CLI::App& command, EngineArguments& arguments);

// Before an adapter is loaded: UserError if it was trained on other weights than those in
// `files.model`, a warning if only its name says so. `allow`: always a warning.
void check_adapter(const ModelFiles& files, bool allow);
// Collective: UserError if the ranks see different weights or configurations.
void check_same_model(Job& job, const ModelFiles& files);

// Loads a model on all ranks of the job, once on each `tensor` of them, and calls `work` on the
// first rank of each copy. Collective. `copies` are these first ranks.
using EngineWork = std::function<void(InferenceEngine& engine, Communicator& copies)>;
void with_engine(Job& job, const EngineArguments& arguments, const ModelFiles& files,
                 const EngineWork& work);

// Loads a model in this process alone, for one sequence at a time.
void with_engine_alone(const EngineArguments& arguments, const ModelFiles& files,
                       std::int64_t max_length, const std::function<void(InferenceEngine&)>& work);

// The options of an evaluation: deterministic, one rank per model.
void add_eval_engine_options(CLI::App& command, EngineArguments& arguments);
// The same as with_engine() for an evaluation: the copies of the model share the requests.
using ModelWork = std::function<void(ScoringModel& model, Tokenizer& tokenizer)>;
void with_model(Job& job, const EngineArguments& arguments, const ModelFiles& files,
                const ModelWork& work);

}  // namespace kintsugi
