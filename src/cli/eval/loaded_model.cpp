#include "cli/eval/loaded_model.h"

#include <CLI/CLI.hpp>

#include "cli/options.h"
#include "cli/token_input.h"
#include "data/chat/prompt_encoder.h"
#include "eval/run/engine_model.h"
#include "eval/run/replicated_model.h"

namespace kintsugi {
void add_eval_engine_options(CLI::App& command, EngineArguments& a) {
  const AddOption add(command);
  a.tensor = 1;
  a.engine.deterministic = true;
  add_precision_options(command, a);
  add_engine_options(command, a);
  add("--tensor", a.tensor,
      "Ranks of one model (tensor parallelism); the ranks / this copies of the model share the "
      "work",
      whole_number(between(1, 1 << 20)), kShowDefault);
}

void with_model(Job& job, const EngineArguments& a, const ModelFiles& files,
                const ModelWork& work) {
  with_engine(job, a, files, [&](InferenceEngine& engine, Communicator& copies) {
    const std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(files.tokenizer());
    const PromptSettings settings =
        read_prompt_settings(tokenizer->files(engine.config().max_positions));
    EngineModel own(engine, *tokenizer, prefix_token_of(*tokenizer, settings.bos, engine.config()));
    ReplicatedModel shared(own, copies);
    work(shared, *tokenizer);
  });
}

}  // namespace kintsugi
