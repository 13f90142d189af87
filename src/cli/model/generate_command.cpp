#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/token_input.h"
#include "serve/language_model.h"

namespace kintsugi {

void add_generate_command(CLI::App& app) {
  struct Arguments {
    std::string checkpoint, prompt, token_ids, precision = "fp32";
    std::int64_t max_tokens = 200, threads = 0;
    SamplingOptions sampling{.temperature = 0.8, .top_k = 0, .top_p = 0.95, .seed = 0};
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a trained model");
  command
      ->add_option("--checkpoint", a->checkpoint,
                   "A checkpoint, a run directory (its latest checkpoint), or a Hugging Face model "
                   "directory of a supported family")
      ->required();
  CLI::Option* prompt = command->add_option("--prompt", a->prompt, "The text to continue");
  CLI::Option* ids =
      command->add_option("--token-ids", a->token_ids, "The prompt as token ids; prints token ids");
  prompt->excludes(ids);
  command->add_option("--max-tokens", a->max_tokens, "Number of tokens to generate")
      ->transform(whole_number(between(1, 1 << 24)))
      ->capture_default_str();
  command->add_option("--temperature", a->sampling.temperature, "Sampling temperature; 0: greedy")
      ->transform(real_number(between(0, 100)))
      ->capture_default_str();
  command->add_option("--top-k", a->sampling.top_k, "Sample from the k most likely tokens; 0: all")
      ->transform(whole_number(between(0, INT32_MAX)))
      ->capture_default_str();
  command
      ->add_option("--top-p", a->sampling.top_p,
                   "Sample from the fewest tokens with this total probability")
      ->transform(real_number(between(0, 1)))
      ->capture_default_str();
  command->add_option("--seed", a->sampling.seed, "Random seed; the same seed gives the same text")
      ->transform(seed_number())
      ->capture_default_str();
  command->add_option("--precision", a->precision, "fp32, bf16, fp16 or fp64")
      ->capture_default_str();
  command->add_option("--threads", a->threads, "CPU threads; 0: all cores")
      ->transform(whole_number(between(0, 1024)))
      ->capture_default_str();
  command->footer(
      "Example:\n  kintsugi generate --checkpoint runs/demo/checkpoints/latest --prompt 'And God "
      "said'");
  command->callback([a] {
    a->checkpoint = model_directory(a->checkpoint).string();
    if (a->prompt.empty() && a->token_ids.empty()) user_error("give a --prompt or --token-ids");
    const bool text = a->token_ids.empty();
    const std::unique_ptr<Tokenizer> tokenizer =
        text ? load_model_tokenizer(a->checkpoint) : nullptr;
    const std::unique_ptr<Backend> backend = make_backend(DeviceChoice::Auto, a->threads);
    std::vector<std::int32_t> tokens = parse_token_ids(a->token_ids);
    if (text) tokenizer->encode(a->prompt, tokens, SpecialTokens::Honoured);
    const DType precision = parse_precision(a->precision);
    LanguageModel::check_memory(*backend, a->checkpoint, precision, LanguageModel::Use::Generation,
                                static_cast<std::int64_t>(tokens.size()) + a->max_tokens);
    LanguageModel model(*backend, a->checkpoint, precision);
    std::optional<TextOutput> output;
    if (text) output.emplace(*tokenizer, tokens);
    const bool to_terminal = isatty(STDOUT_FILENO) == 1;
    TerminalText terminal;
    const auto print = [&](const std::string& added) {
      const std::string shown = to_terminal ? terminal.add(added) : added;
      std::fwrite(shown.data(), 1, shown.size(), stdout);
    };
    // Printed with the first token: after an error standard output stays empty.
    const auto print_prompt = [&] { print(std::exchange(a->prompt, {})); };
    model.generate(tokens, a->max_tokens, a->sampling, [&](std::int32_t token) {
      print_prompt();
      if (text)
        print(output->add(token));
      else
        std::printf("%d ", token);
      return std::fflush(stdout) == 0;  // stop when the reader has closed the pipe
    });
    print_prompt();
    std::puts(terminal.rest().c_str());
  });
}

}  // namespace kintsugi
