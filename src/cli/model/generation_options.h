#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/engine.h"
#include "data/chat/prompt_encoder.h"
#include "serve/sampling.h"

namespace CLI {
class App;
}

namespace kintsugi {

// The options that `generate` and `chat` share.
struct GenerationArguments {
  std::string checkpoint, bos = "auto", chat_template;
  std::int64_t max_tokens = 200;
  EngineArguments engine;
  SamplingOptions sampling{.temperature = 0.8, .top_p = 0.95};
  std::vector<std::string> stop;
};
void add_generation_options(CLI::App& command, GenerationArguments& arguments);

// What a model directory has besides the weights.
struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;
  PromptSettings settings;
  PromptEncoder encoder;
};
ModelText load_model_text(const ModelFiles& files, const GenerationArguments& arguments);

// Writes generated text to standard output at once; on a terminal printable (core/log.h), so that a
// model cannot send control sequences.
class TextPrinter {
 public:
  TextPrinter();
  bool print(std::string_view text);  // false when standard output cannot be written any more
  bool end_line();

 private:
  bool to_terminal_;
  std::string held_;  // an incomplete UTF-8 character, until its last byte is printed
};

}  // namespace kintsugi
