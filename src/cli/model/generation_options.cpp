#include "cli/model/generation_options.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cli/options.h"
#include "core/log.h"
#include "data/chat/chat_template.h"
#include "serve/text_output.h"

namespace kintsugi {
namespace {

void add_sampling_options(CLI::App& command, SamplingOptions& sampling) {
  const AddOption add(command);
  add("--temperature", sampling.temperature, "Sampling temperature; 0: greedy",
      real_number(between(0, 100)), kShowDefault);
  add("--top-k", sampling.top_k, "Sample from the k most likely tokens; 0: all",
      whole_number(between(0, INT32_MAX)), kShowDefault);
  add("--top-p", sampling.top_p, "Sample from the fewest tokens with this total probability",
      real_number(between(0, 1)), kShowDefault);
  add("--min-p", sampling.min_p,
      "Sample from tokens with at least this fraction of the largest probability",
      real_number(between(0, 1)), kShowDefault);
  add("--repetition-penalty", sampling.repetition_penalty,
      "Make tokens of the prompt and the text so far less likely; 1: off",
      real_number(between(0.01, 100)), kShowDefault);
  add("--seed", sampling.seed, "Random seed; the same seed gives the same text", seed_number(),
      kShowDefault);
}

}  // namespace

void add_generation_options(CLI::App& command, GenerationArguments& a) {
  const AddOption add(command);
  add_checkpoint_option(command, a.checkpoint);
  add("--max-tokens", a.max_tokens, "Number of tokens to generate, at most",
      whole_number(between(1, 1 << 24)), kShowDefault);
  add_sampling_options(command, a.sampling);
  add("--stop", a.stop, "End the text before this string; may be given several times", kRepeatable);
  add("--chat-template", a.chat_template,
      "The chat format, if the model names none that is known: " + chat_format_names(),
      TypeName{"NAME"});
  add_bos_option(command, a.bos, "the prompt");
  add_precision_options(command, a.engine);
}

ModelText load_model_text(const ModelFiles& files, const GenerationArguments& arguments) {
  std::unique_ptr<Tokenizer> tokenizer = load_model_tokenizer(files.tokenizer());
  const ModelConfig config = read_hf_config(files.model / "config.json");
  PromptSettings settings;
  try {
    settings = read_prompt_settings(tokenizer->files(config.max_positions));
  } catch (const UserError& error) {
    user_error("{}: {}", files.tokenizer().string(), error.what());
  }
  const PromptEncoder encoder(*tokenizer, settings, parse_bos_choice(arguments.bos),
                              config.bos_token);
  return {std::move(tokenizer), std::move(settings), encoder};
}

TextPrinter::TextPrinter() : to_terminal_(isatty(STDOUT_FILENO) == 1) {}

bool TextPrinter::print(std::string_view text) {
  std::string shown(text);
  if (to_terminal_) {
    held_ += text;
    const std::size_t end = complete_characters(held_);
    shown = printable(std::string_view(held_).substr(0, end));
    held_.erase(0, end);
  }
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  return std::fflush(stdout) == 0;
}

bool TextPrinter::end_line() {
  std::puts(printable(std::exchange(held_, {})).c_str());
  return std::fflush(stdout) == 0;
}

}  // namespace kintsugi
