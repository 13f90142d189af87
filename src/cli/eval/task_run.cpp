#include "cli/eval/task_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/file.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/units.h"
#include "data/stores/token_store.h"
#include "eval/run/results.h"
#include "model/config.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

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

TaskSet tasks_of(const TaskRunArguments& a) {
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

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class TaskRun {
 public:
  TaskRun(TaskRunArguments arguments, Job& job) : a_(std::move(arguments)), job_(job) {}

  void run() {
    prepare();
    for (const ModelFiles& files : models_) evaluate(files);
    if (job_.world().rank() == 0) print();
  }

 private:
  void print() const {
    if (a_.json)
      fmt::print("{}\n", (json_.size() == 1 ? json_[0] : EvalDocument(json_))
                             .dump(2, ' ', false, EvalDocument::error_handler_t::replace));
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
        EvaluationOptions{.shots = a_.shots, .limit = a_.limit, .fewshot_seed = a_.fewshot_seed},
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
    ResultSource source{.model = files.name().string(), .options = options_json(files)};
    source.start_s = seconds_since_1970();
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
      source.duration_s = seconds_since_1970() - source.start_s;
      if (a_.json) json_.push_back(results_json(*evaluation_, results_.back(), source));
      if (a_.output.empty()) return;
      write(source, answers);
    });
  }

  void write(const ResultSource& source, const std::vector<TaskAnswers>& answers) {
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

  EvalDocument batch_size() const {
    const std::int64_t sequences = a_.engine.engine.max_sequences;
    return sequences == 0 ? EvalDocument("auto") : EvalDocument(sequences);
  }

  EvalDocument options_json(const ModelFiles& files) const {
    EvalDocument model = {{"pretrained", files.model.string()}, {"dtype", a_.engine.precision}};
    if (!files.adapter.empty()) model["peft"] = files.adapter.string();
    return {{"model", "kintsugi"},
            {"model_args", model},
            {"batch_size", batch_size()},
            {"device", "auto"},
            {"limit", a_.limit ? EvalDocument(*a_.limit) : EvalDocument(nullptr)},
            {"bootstrap_iters", a_.bootstrap},
            {"fewshot_seed", a_.fewshot_seed}};
  }

  TaskRunArguments a_;
  Job& job_;
  std::vector<ModelFiles> models_;  // by checkpoint
  std::optional<TaskEvaluation> evaluation_;
  std::vector<EvaluationResults> results_;  // by checkpoint
  std::vector<EvalDocument> json_;
};

}  // namespace

void run_tasks(TaskRunArguments arguments) {
  Job job;
  job.run([&] { TaskRun(std::move(arguments), job).run(); });
}

}  // namespace kintsugi
