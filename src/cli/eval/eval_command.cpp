#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "comm/communicator.h"
#include "core/file.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/table.h"
#include "core/units.h"
#include "data/stores/token_store.h"
#include "eval/run/results.h"
#include "model/config.h"
#include "serve/generation.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct EvalArguments {
  std::vector<std::string> checkpoints, tasks, include_paths, stores, contamination;
  std::string text, token_ids;
  std::optional<std::int64_t> shots;
  std::optional<double> limit;
  std::uint64_t fewshot_seed = 1234;
  std::int64_t bootstrap = 100'000;
  std::string output;
  bool samples = true, json = false, log_probabilities = false;
  EngineArguments engine;
};

// A task that scores a token store as it is.
EvalTask store_task(const std::string& prefix) {
  EvalTask task;
  task.name = "store_" + fs::path(prefix).filename().string();
  task.output_type = OutputType::LoglikelihoodRolling;
  task.split = task.fewshot_split = task.test_split = "test";
  task.data_files["test"] = {prefix};
  for (const char* metric : {"word_perplexity", "byte_perplexity", "bits_per_byte"})
    task.metrics.push_back({metric, false});
  task.config = {{"task", task.name},
                 {"output_type", "loglikelihood_rolling"},
                 {"dataset_kwargs", {{"data_files", {{"test", prefix}}}}}};
  return task;
}

TaskSet tasks_of(const EvalArguments& a) {
  TaskSet set;
  if (!a.tasks.empty()) set = find_tasks(a.tasks, {a.include_paths.begin(), a.include_paths.end()});
  for (const std::string& store : a.stores) {
    if (!is_token_store(store))
      user_error("{} is not a token store: there is no {}.idx", store, store);
    set.tasks.push_back(store_task(store));
  }
  return set;
}

// Tokens of another tokenizer would be scored as other text.
void check_stores(const TaskEvaluation& evaluation, const Tokenizer& tokenizer) {
  for (const PreparedTask& prepared : evaluation.tasks())
    for (const auto& [split, files] : prepared.task.data_files)
      for (const std::string& file : files) {
        const std::string path = data_path(prepared.task, file);
        if (path == "-" || !is_token_store(path)) continue;
        const std::optional<StoreInfo> info = read_store_info(path);
        if (info && !info->tokenizer.empty() && info->tokenizer != tokenizer.fingerprint())
          user_error(
              "{} has tokens of another tokenizer ({}) than the model ({}): tokenize the text "
              "again with the model's tokenizer",
              path, info->tokenizer_description, tokenizer.description());
      }
}

// kintsugi eval --tasks and --store.
class TaskRun {
 public:
  TaskRun(EvalArguments arguments, Job& job) : a_(std::move(arguments)), job_(job) {}

  void run() {
    prepare();
    for (const ModelFiles& files : models_) evaluate(files);
    if (job_.world().rank() == 0) print();
  }

 private:
  void print() const {
    if (a_.json)
      fmt::print("{}", json_lines(json_.size() == 1 ? json_[0] : EvalDocument(json_)));
    else
      fmt::print("{}", printable(results_table(*evaluation_, results_, a_.checkpoints)));
    std::fflush(stdout);
  }

  // Everything that can be wrong is found before a model is loaded.
  void prepare() {
    TaskSet tasks;
    job_.together([&] {
      if (!a_.engine.adapter.empty() && a_.checkpoints.size() > 1)
        user_error("--adapter needs one --checkpoint; adapters are also given as --checkpoint");
      for (std::string& checkpoint : a_.checkpoints) {
        models_.push_back(find_model(checkpoint, a_.engine.adapter));
        checkpoint = models_.back().name().string();
      }
      tasks = tasks_of(a_);
      if (!a_.output.empty() && job_.world().rank() == 0) check_output();
    });
    evaluation_.emplace(
        std::move(tasks),
        EvaluationOptions{.shots = a_.shots,
                          .limit = a_.limit,
                          .fewshot_seed = a_.fewshot_seed,
                          .contamination = {a_.contamination.begin(), a_.contamination.end()}},
        [&](const std::string& path) { return shared_text(path); });
  }

  // Rank 0 reads the file.
  std::string shared_text(const std::string& path) {
    std::string text;
    job_.together([&] {
      if (job_.world().rank() == 0) text = read_whole_text(path);
    });
    return job_.broadcast_text(text);
  }

  void check_output() {
    for (const std::string& checkpoint : a_.checkpoints) {
      const fs::path own = fs::path(a_.output) / name_for_files(checkpoint);
      std::error_code error;
      fs::create_directories(own, error);
      if (error) user_error("--output {}: {}", own.string(), error.message());
      if (access(own.c_str(), W_OK) != 0)
        user_error("--output {}: the directory cannot be written", own.string());
    }
  }

  void evaluate(const ModelFiles& files) {
    EvaluationInfo source{.model = files.name().string(),
                          .options = options_json(files),
                          .contamination = a_.contamination};
    source.start_s = unix_time_s();
    with_model(job_, a_.engine, files, [&](ScoringModel& model, Tokenizer& tokenizer) {
      check_stores(*evaluation_, tokenizer);
      std::optional<Progress> progress;
      if (job_.world().rank() == 0) progress.emplace("evaluate", 0, "requests");
      const std::vector<TaskAnswers> answers =
          evaluation_->ask(model, [&](std::size_t done, std::size_t all) {
            if (progress)
              progress->set(static_cast<std::int64_t>(std::min(done, all)),
                            static_cast<std::int64_t>(all));
          });
      if (job_.world().rank() != 0) return;
      progress.reset();
      results_.push_back(
          score_evaluation(*evaluation_, answers, {.bootstrap_samples = a_.bootstrap}));
      source.duration_s = unix_time_s() - source.start_s;
      if (a_.json) json_.push_back(results_json(*evaluation_, results_.back(), source));
      if (!a_.output.empty()) write(source, answers);
    });
  }

  void write(const EvaluationInfo& source, const std::vector<TaskAnswers>& answers) {
    try {
      const fs::path path = write_results(a_.output, *evaluation_, results_.back(), source,
                                          a_.samples ? &answers : nullptr);
      log_note("results in {}", path.string());
    } catch (const std::exception&) {
      a_.checkpoints.resize(results_.size());
      print();  // what was computed is not lost
      throw;
    }
  }

  EvalDocument options_json(const ModelFiles& files) const {
    EvalDocument model = {{"pretrained", files.model.string()}, {"dtype", a_.engine.precision}};
    if (!files.adapter.empty()) model["peft"] = files.adapter.string();
    const std::int64_t sequences = a_.engine.engine.max_sequences;
    return {{"model", "kintsugi"},
            {"model_args", model},
            {"batch_size", sequences == 0 ? EvalDocument("auto") : EvalDocument(sequences)},
            {"device", "auto"},
            {"limit", Cell(a_.limit).value},
            {"bootstrap_iters", a_.bootstrap},
            {"fewshot_seed", a_.fewshot_seed}};
  }

  EvalArguments a_;
  Job& job_;
  std::vector<ModelFiles> models_;  // by checkpoint
  std::optional<TaskEvaluation> evaluation_;
  std::vector<EvaluationResults> results_;  // by checkpoint
  std::vector<EvalDocument> json_;
};

// The log-probability of each token after the first.
std::vector<double> score_tokens(const EvalArguments& a, const ModelFiles& files,
                                 const std::vector<std::int32_t>& tokens) {
  std::vector<double> values;
  with_engine_alone(a.engine, files, std::ssize(tokens), [&](InferenceEngine& engine) {
    const GenerationResult result =
        generate_text(engine, nullptr, {.prompt = tokens, .max_tokens = 0, .score_from = 1},
                      [](std::string_view) { return true; });
    for (const SampledToken& token : result.scores) values.push_back(token.logprob.value());
  });
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
  if (!a.text.empty() || !a.token_ids.empty()) return score_text(a);
  if (a.tasks.empty() && a.stores.empty())
    user_error("give --tasks, a --store, a --text or --token-ids");
  Job job;
  job.run([&] { TaskRun(a, job).run(); });
}

void add_text_options(CLI::App& command, EvalArguments& a, CLI::Option* tasks) {
  const AddOption add(command);
  CLI::Option* text = add("--text", a.text, "Score this text");
  CLI::Option* ids =
      add("--token-ids", a.token_ids, "Score these token ids, separated by spaces or commas");
  text->excludes(ids)->excludes(tasks);
  ids->excludes(tasks);
  add("--logprobs", a.log_probabilities,
      "With --text or --token-ids: print a JSON array, the log-probability of each token after the "
      "first");
}

CLI::Option* add_task_options(CLI::App& command, EvalArguments& a) {
  const AddOption add(command);
  CLI::Option* tasks = add("--tasks", a.tasks,
                           "Task files, directories of them, or names of tasks, groups and tags, "
                           "separated by commas",
                           kRepeatable)
                           ->delimiter(',');
  add("--include-path", a.include_paths,
      "A directory in which names are searched; may be given several times", kRepeatable);
  add("--store", a.stores,
      "A token store whose documents are scored as a whole; may be given several times",
      kRepeatable);
  add("--num-fewshot", a.shots, "Examples in each prompt, instead of the tasks'",
      whole_number(between(0, 1 << 20)));
  add("--fewshot-seed", a.fewshot_seed, "Seed of the examples that are drawn", seed_number(),
      kShowDefault);
  add("--limit", a.limit, "Documents of each task: a number, or below 1 a fraction of them",
      real_number(above(0)));
  add("--contamination", a.contamination,
      "curation.json of a training corpus whose recipe has decontaminate: also score the tasks "
      "without the questions that it has; may be given several times",
      kRepeatable);
  add("--bootstrap", a.bootstrap,
      "Samples for the standard error of perplexity, f1 and mcc (bleu and chrf: at most 100); 0: "
      "none",
      whole_number(between(0, 1 << 30)), kShowDefault);
  add("--output", a.output,
      "Write the results, and what was asked and answered, to this directory");
  add("!--no-samples", a.samples, "Do not write what was asked and answered");
  add("--json", a.json, "Print JSON instead of a table");
  return tasks;
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* command = app.add_subcommand(
      "eval", "Evaluate a trained model in tasks, or score a text; score translations");
  const AddOption add(*command);
  add("--checkpoint", a->checkpoints,
      "A checkpoint, a run directory (its latest checkpoint), or a Hugging Face model directory of "
      "a supported family; may be given several times, to compare",
      kRepeatable);
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
