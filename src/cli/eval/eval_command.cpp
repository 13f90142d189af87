#include <fmt/format.h>

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
#include "cli/eval/task_run.h"
#include "cli/options.h"
#include "cli/token_input.h"
#include "comm/communicator.h"
#include "serve/generation.h"

namespace kintsugi {
namespace {

struct EvalArguments : TaskRunArguments {
  std::string text, token_ids;
  bool log_probabilities = false;
};

// The log-probability of each token after the first.
std::vector<double> score_tokens(const EvalArguments& a, const ModelFiles& files,
                                 const std::vector<std::int32_t>& tokens) {
  const std::unique_ptr<Backend> backend = make_backend(DeviceChoice::Auto, a.engine.threads);
  LocalCommunicator alone("tensor", backend.get());
  std::optional<Progress> loading(std::in_place, "load model", 0, "bytes");
  InferenceEngine engine(*backend, alone, files.model,
                         {.precision = parse_precision(a.engine.precision),
                          .max_length = static_cast<std::int64_t>(tokens.size()),
                          .max_sequences = 1,
                          .adapter = files.adapter,
                          .unused = unused_weights_of(a.engine),
                          .loading = loading->callback()});
  loading.reset();
  std::vector<double> values;
  const GenerationResult result =
      generate_text(engine, nullptr, {.prompt = tokens, .max_tokens = 0, .score_from = 1},
                    [](std::string_view) { return true; });
  for (const SampledToken& token : result.scores) values.push_back(token.logprob.value());
  return values;
}

void print_summary(const std::vector<double>& values, const Tokenizer* tokenizer,
                   const std::vector<std::int32_t>& tokens) {
  double total = 0;
  for (const double value : values) total -= value;
  const double mean = total / static_cast<double>(values.size());
  const double perplexity = std::exp(mean);  // printed as null on overflow
  std::printf("{\"tokens\": %zu, \"loss\": %.9g, \"perplexity\": %s", values.size(), mean,
              std::isfinite(perplexity) ? fmt::format("{:.9g}", perplexity).c_str() : "null");
  std::int64_t bytes = 0;  // of the tokens that were scored
  for (std::size_t i = 1; tokenizer != nullptr && i < tokens.size(); ++i)
    bytes += tokenizer->bytes_of(tokens[i]);
  if (bytes > 0)
    std::printf(", \"bits_per_byte\": %.9g",
                total / std::numbers::ln2 / static_cast<double>(bytes));
  std::puts("}");
}

void score_text(const EvalArguments& a) {
  if (a.checkpoints.size() > 1) user_error("--text and --token-ids need one --checkpoint");
  const ModelFiles files = find_model(a.checkpoints.front(), a.engine.adapter);
  check_adapter(files, a.engine.allow_other_base);
  std::vector<std::int32_t> tokens = parse_token_ids(a.token_ids);
  std::unique_ptr<Tokenizer> tokenizer;
  if (!a.text.empty()) {
    tokenizer = load_model_tokenizer(files.tokenizer());
    tokenizer->encode(a.text, tokens, SpecialTokens::Honoured);
  }
  if (tokens.size() < 2) user_error("scoring needs at least two tokens, {} given", tokens.size());
  const std::vector<double> values = score_tokens(a, files, tokens);
  if (!a.log_probabilities) return print_summary(values, tokenizer.get(), tokens);
  for (std::size_t i = 0; i < values.size(); ++i)
    std::printf("%s%.9g", i == 0 ? "[" : ", ", values[i]);
  std::puts("]");
}

void run_eval(const EvalArguments& a) {
  if (a.checkpoints.empty())
    user_error("--checkpoint is required; kintsugi eval --help has examples");
  const bool text = !a.text.empty() || !a.token_ids.empty();
  if (text) return score_text(a);
  if (a.tasks.empty() && a.stores.empty())
    user_error("give --tasks, a --store, a --text or --token-ids");
  run_tasks(a);
}

void add_text_options(CLI::App& command, EvalArguments& a, CLI::Option* tasks) {
  CLI::Option* text = command.add_option("--text", a.text, "Score this text");
  CLI::Option* ids = command.add_option("--token-ids", a.token_ids,
                                        "Score these token ids, separated by spaces or commas");
  text->excludes(ids)->excludes(tasks);
  ids->excludes(tasks);
  command.add_flag("--logprobs", a.log_probabilities,
                   "With --text or --token-ids: print a JSON array, the log-probability of each "
                   "token after the first");
}

CLI::Option* add_task_options(CLI::App& command, EvalArguments& a) {
  CLI::Option* tasks =
      command
          .add_option("--tasks", a.tasks,
                      "Task files, directories of them, or names of tasks, groups and tags, "
                      "separated by commas")
          ->delimiter(',')
          ->allow_extra_args(false);
  command
      .add_option("--include-path", a.include_paths,
                  "A directory in which names are searched; may be given several times")
      ->allow_extra_args(false);
  command
      .add_option("--store", a.stores,
                  "A token store whose documents are scored as a whole; may be given several times")
      ->allow_extra_args(false);
  command.add_option("--num-fewshot", a.shots, "Examples in each prompt, instead of the tasks'")
      ->transform(whole_number(between(0, 1 << 20)));
  command.add_option("--fewshot-seed", a.fewshot_seed, "Seed of the examples that are drawn")
      ->transform(seed_number())
      ->capture_default_str();
  command
      .add_option("--limit", a.limit,
                  "Documents of each task: a number, or below 1 a fraction of them")
      ->transform(real_number(above(0)));
  command
      .add_option("--bootstrap", a.bootstrap,
                  "Samples for the standard error of perplexity, f1 and mcc (bleu and chrf: at "
                  "most 100); 0: none")
      ->transform(whole_number(between(0, 1 << 30)))
      ->capture_default_str();
  command.add_option("--output", a.output,
                     "Write the results, and what was asked and answered, to this directory");
  command.add_flag("!--no-samples", a.samples, "Do not write what was asked and answered");
  command.add_flag("--json", a.json, "Print JSON instead of a table");
  return tasks;
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand(
      "eval", "Evaluate a trained model in tasks, or score a text; score translations");
  command
      ->add_option("--checkpoint", a->checkpoints,
                   "A checkpoint, a run directory (its latest checkpoint), or a Hugging Face model "
                   "directory of a supported family; may be given several times, to compare")
      ->allow_extra_args(false);
  add_text_options(*command, *a, add_task_options(*command, *a));
  add_eval_engine_options(*command, a->engine);
  command->footer(
      "Task files are those of lm-evaluation-harness (YAML) on local data. With --text, prints the "
      "mean loss, the\nperplexity and the bits per byte; no token is prepended, so the first token "
      "is not scored.\n\nExamples:\n"
      "  kintsugi eval --checkpoint runs/demo --tasks examples/eval --output results\n"
      "  kintsugi eval --checkpoint runs/a --checkpoint runs/b --tasks arc.yaml --num-fewshot 5\n"
      "  mpirun -n 4 kintsugi eval --checkpoint runs/demo --tasks blimp --include-path tasks\n"
      "  kintsugi eval --checkpoint runs/demo --store runs/data/en --limit 100\n"
      "  kintsugi eval --checkpoint runs/demo --text 'And God said'\n"
      "  kintsugi eval bleu --hypotheses output.de --references newstest2017.de");
  command->require_subcommand(0, 1);
  add_eval_translate(*command);
  add_eval_bleu(*command);
  add_eval_chrf(*command);
  add_eval_aggregate(*command);
  command->callback([a, command] {
    if (command->get_subcommands().empty()) run_eval(*a);
  });
}

}  // namespace kintsugi
