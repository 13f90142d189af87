#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/eval/commands.h"
#include "cli/options.h"
#include "cli/token_input.h"
#include "comm/local_communicator.h"
#include "serve/generation.h"

namespace kintsugi {

void add_eval_command(CLI::App& app) {
  struct Arguments {
    std::string checkpoint, text, token_ids, precision = "fp32";
    bool log_probabilities = false;
    std::int64_t threads = 0;
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("eval", "Score a text with a trained model; score translations");
  command->add_option("--checkpoint", a->checkpoint,
                      "A checkpoint, a run directory (its latest checkpoint), or a Hugging Face "
                      "model directory of a supported family");
  CLI::Option* text = command->add_option("--text", a->text, "The text to score");
  CLI::Option* ids = command->add_option("--token-ids", a->token_ids,
                                         "The token ids to score, separated by spaces or commas");
  text->excludes(ids);
  command->add_flag("--logprobs", a->log_probabilities,
                    "Print a JSON array: the log-probability of each token after the first");
  command->add_option("--precision", a->precision, "fp32, bf16, fp16 or fp64")
      ->capture_default_str();
  command->add_option("--threads", a->threads, "CPU threads; 0: all cores")
      ->transform(whole_number(between(0, 1024)))
      ->capture_default_str();
  command->footer(
      "Without --logprobs, prints the mean loss, the perplexity and, for a text, the bits per "
      "byte.\nNo token is prepended, so the first token is not scored.\n\nExamples:\n"
      "  kintsugi eval --checkpoint runs/demo/checkpoints/latest --text 'And God said'\n"
      "  kintsugi eval --checkpoint runs/demo/checkpoints/latest --token-ids '65 110 100 32' "
      "--logprobs\n"
      "  kintsugi eval bleu --hypotheses output.de --references newstest2017.de");
  command->require_subcommand(0, 1);
  add_eval_bleu(*command);
  add_eval_chrf(*command);
  add_eval_aggregate(*command);
  command->callback([a, command] {
    if (!command->get_subcommands().empty()) return;
    if (a->checkpoint.empty())
      user_error("--checkpoint is required; kintsugi eval --help has examples");
    a->checkpoint = model_directory(a->checkpoint).string();
    if (a->text.empty() && a->token_ids.empty()) user_error("give a --text or --token-ids");
    std::vector<std::int32_t> tokens = parse_token_ids(a->token_ids);
    std::unique_ptr<Tokenizer> tokenizer;
    if (!a->text.empty()) {
      tokenizer = load_model_tokenizer(a->checkpoint);
      tokenizer->encode(a->text, tokens, SpecialTokens::Honoured);
    }
    if (tokens.size() < 2) user_error("scoring needs at least two tokens, {} given", tokens.size());
    const std::unique_ptr<Backend> backend = make_backend(DeviceChoice::Auto, a->threads);
    const DType precision = parse_precision(a->precision);
    LocalCommunicator alone("tensor", backend.get());
    InferenceEngine engine(
        *backend, alone, a->checkpoint,
        {.precision = precision, .max_length = std::ssize(tokens), .max_sequences = 1});
    const GenerationResult scored =
        generate_text(engine, nullptr, {.prompt = tokens, .score_from = 1},
                      [](std::string_view) { return true; });
    std::vector<double> values;
    for (const SampledToken& token : scored.scores) values.push_back(*token.logprob);
    if (a->log_probabilities) {
      for (std::size_t i = 0; i < values.size(); ++i)
        std::printf("%s%.9g", i == 0 ? "[" : ", ", values[i]);
      std::puts("]");
      return;
    }
    double total = 0;
    for (const double value : values) total -= value;
    const double mean = total / static_cast<double>(values.size());
    const double perplexity = std::exp(mean);  // printed as null on overflow
    std::printf("{\"tokens\": %zu, \"loss\": %.9g, \"perplexity\": %s", values.size(), mean,
                std::isfinite(perplexity) ? fmt::format("{:.9g}", perplexity).c_str() : "null");
    if (tokenizer) {
      std::int64_t bytes = 0;  // of the tokens that were scored
      for (std::size_t i = 1; i < tokens.size(); ++i) bytes += tokenizer->bytes_of(tokens[i]);
      if (bytes > 0)
        std::printf(", \"bits_per_byte\": %.9g",
                    total / std::numbers::ln2 / static_cast<double>(bytes));
    }
    std::puts("}");
  });
}

}  // namespace kintsugi
