#include "eval/run/evaluation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

// Adds the origin of a document to its errors.
template <class Work>
auto with_origin(const PreparedTask& task, std::size_t document, Work&& work) {
  try {
    return work();
  } catch (const UserError& error) {
    user_error("{}: {}", task.data.where(document), error.what());
  }
}

std::size_t documents_of(const EvaluationOptions& options, std::size_t all) {
  if (!options.limit) return all;
  const double limit = *options.limit;
  const double wanted = limit < 1 ? std::ceil(static_cast<double>(all) * limit) : limit;
  return static_cast<std::size_t>(
      std::clamp(std::floor(wanted), 1.0, static_cast<double>(std::max<std::size_t>(1, all))));
}

// Shortens a context on the left, so that the model reads max_length tokens.
bool shorten(TokenPair& pair, std::size_t max_length) {
  const LocalInput input = local_input(pair, max_length);  // UserError if it cannot be done
  const std::size_t kept = input.ids.size() + 1 - input.scored;
  if (kept >= pair.context.size()) return false;
  pair.context.erase(pair.context.begin(), pair.context.end() - static_cast<std::ptrdiff_t>(kept));
  return true;
}

// The requests of an evaluation as tokens, and where their answers belong.
class AskedTokens {
 public:
  explicit AskedTokens(ScoringModel& model) : model_(model) {}

  void add(const PreparedTask& task, TaskAnswers& answers) {
    shortened_ = 0;
    answers.resize(task.requests.size());
    for (std::size_t i = 0; i < answers.size(); ++i)
      with_origin(task, i, [&] { add_document(task, i, answers[i]); });
    if (shortened_ > 0)
      log_warning("{}: {} requests are longer than {} tokens, and were shortened on the left",
                  task.task.name, shortened_, model_.max_length());
  }

  void ask(const TaskEvaluation::Progress& progress) {
    order_pairs();
    const std::size_t all = unique_.size() + texts_.size();
    std::size_t done = 0;
    const ScoringProgress count = [&](std::size_t requests) {
      done += requests;
      if (progress) progress(done, all);
    };
    if (!unique_.empty()) {
      const std::vector<ContinuationScore> scores = model_.score(unique_, count);
      KINTSUGI_CHECK(scores.size() == unique_.size(), "{} scores for {} requests", scores.size(),
                     unique_.size());
      for (std::size_t i = 0; i < asked_.size(); ++i) *asked_[i].answer = scores[asked_[i].unique];
    }
    if (texts_.empty()) return;
    std::vector<std::string> texts = model_.generate(texts_, count);
    KINTSUGI_CHECK(texts.size() == texts_.size(), "{} texts for {} requests", texts.size(),
                   texts_.size());
    for (std::size_t i = 0; i < texts.size(); ++i) *text_answers_[i] = std::move(texts[i]);
  }

  // Sums the windows of rolling documents.
  void finish() {
    for (const Rolling& rolling : rolling_) {
      std::vector<double> windows;
      for (const ContinuationScore& score : *rolling.windows)
        windows.push_back(score.log_probability);
      *rolling.answer = score_rolling(rolling.text, windows);
    }
  }

 private:
  struct Asked {
    TokenPair pair;
    ContinuationScore* answer;
    std::size_t unique = 0;
  };
  struct Rolling {
    std::string text;
    RollingScore* answer;
    std::unique_ptr<std::vector<ContinuationScore>> windows;
  };

  TokenPair encoded(const EvalRequest& request) {
    return encode_pair(
        request.context, request.continuation,
        [&](const std::string& text) { return model_.encode(text); }, model_.prefix_token());
  }

  void add_pairs(const std::vector<EvalRequest>& requests, std::vector<ContinuationScore>& scores) {
    scores.resize(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      TokenPair pair = encoded(requests[i]);
      if (pair.continuation.empty()) continue;  // probability 1
      shortened_ += shorten(pair, model_.max_length()) ? 1 : 0;
      asked_.push_back({std::move(pair), &scores[i]});
    }
  }

  void add_document(const PreparedTask& task, std::size_t document, DocumentAnswer& answer) {
    const DocumentRequests& asked = task.requests[document];
    switch (task.task.output_type) {
      case OutputType::MultipleChoice:
      case OutputType::Loglikelihood:
        add_pairs(asked.requests, answer.scores);
        add_pairs(asked.unconditional, answer.unconditional);
        return;
      case OutputType::LoglikelihoodRolling:
        return add_rolling(asked, answer);
      case OutputType::GenerateUntil:
        return add_text(task.task, document, asked.requests.front(), answer);
    }
  }

  void add_rolling(const DocumentRequests& asked, DocumentAnswer& answer) {
    const bool tokens = !asked.tokens.empty();
    const std::string& text = asked.requests.front().context;
    const std::vector<TokenPair> windows = rolling_windows(
        tokens ? asked.tokens : model_.encode(text), model_.prefix_token(), model_.max_length());
    rolling_.push_back({tokens ? model_.decode(asked.tokens) : text, &answer.rolling,
                        std::make_unique<std::vector<ContinuationScore>>(windows.size())});
    for (std::size_t i = 0; i < windows.size(); ++i)
      asked_.push_back({windows[i], &(*rolling_.back().windows)[i]});
  }

  void add_text(const EvalTask& task, std::size_t document, const EvalRequest& request,
                DocumentAnswer& answer) {
    TextRequest text{model_.encode(request.context), task.generation, document};
    if (text.prompt.empty()) text.prompt = {model_.prefix_token()};
    const auto most = static_cast<std::int64_t>(model_.max_length()) - task.generation.max_gen_toks;
    if (most < 1)
      user_error("{}: max_gen_toks is {}, but the model has {} tokens for prompt and text",
                 task.name, task.generation.max_gen_toks, model_.max_length());
    if (std::ssize(text.prompt) > most) {
      text.prompt.erase(text.prompt.begin(), text.prompt.end() - most);
      ++shortened_;
    }
    texts_.push_back(std::move(text));
    text_answers_.push_back(&answer.text);
  }

  void order_pairs() {
    std::vector<std::size_t> order(asked_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const TokenPair &x = asked_[a].pair, &y = asked_[b].pair;
      return x.context != y.context ? x.context < y.context : x.continuation < y.continuation;
    });
    for (const std::size_t i : order) {
      TokenPair& pair = asked_[i].pair;
      const bool repeated = !unique_.empty() && unique_.back().context == pair.context &&
                            unique_.back().continuation == pair.continuation;
      if (!repeated) unique_.push_back(std::move(pair));
      asked_[i].unique = unique_.size() - 1;
    }
  }

  ScoringModel& model_;
  std::vector<Asked> asked_;
  std::vector<TokenPair> unique_;  // in the order of computation
  std::vector<TextRequest> texts_;
  std::vector<std::string*> text_answers_;
  std::vector<Rolling> rolling_;
  std::size_t shortened_ = 0;  // requests of the current task
};

// Finds metrics that cannot be computed before a model is asked.
void check_metric(const PreparedTask& task, const TaskMetric& metric) {
  const bool pairs = metric.name == "f1" && task.task.output_type == OutputType::MultipleChoice;
  const bool texts = metric.name == "bleu" || metric.name == "chrf";
  for (std::size_t i = 0; i < task.requests.size(); ++i) {
    const DocumentRequests& asked = task.requests[i];
    const auto wrong = [&](const std::string& need) {
      user_error("{}: {} needs {}", task.data.where(i), metric.name, need);
    };
    if (pairs && asked.choices.size() != 2) wrong("two choices");
    if (metric.name == "brier_score" &&
        (gold_indices(asked.gold, asked.choices).size() != 1 ||
         asked.choices.size() != task.requests.front().choices.size()))
      wrong("one right choice, and the same number of choices in all documents");
    if (texts && std::all_of(asked.targets.begin(), asked.targets.end(),
                             [](const std::string& target) { return target.empty(); }))
      wrong("a target that is not empty");
  }
}

// lm-evaluation-harness counts a document whose label is none of its choices as wrong. If none has
// a right choice, the task file is wrong.
void check_labels(const PreparedTask& task) {
  if (task.task.output_type != OutputType::MultipleChoice) return;
  std::vector<std::size_t> without;
  for (std::size_t i = 0; i < task.requests.size(); ++i)
    if (gold_indices(task.requests[i].gold, task.requests[i].choices).empty()) without.push_back(i);
  if (without.empty()) return;
  const DocumentRequests& first = task.requests[without.front()];
  const std::string example =
      fmt::format("{}: its label is {}, and it has {} choices", task.data.where(without.front()),
                  first.label.dump(-1, ' ', false, EvalDocument::error_handler_t::replace),
                  first.choices.size());
  if (without.size() == task.requests.size())
    user_error(
        "{}: no document has a label that is one of its choices ({}): correct doc_to_target (an "
        "index from 0, or the text of a choice) or doc_to_choice",
        task.task.name, example);
  log_warning(
      "{}: {} of {} documents have a label that is none of their choices, and count as wrong ({})",
      task.task.name, without.size(), task.requests.size(), example);
}

void check_group(const TaskSet::Group& group, const std::vector<PreparedTask>& tasks) {
  for (const EvalGroup::Mean& mean : group.group.means) {
    const bool found = std::any_of(group.tasks.begin(), group.tasks.end(), [&](std::size_t task) {
      const auto& metrics = tasks[task].task.metrics;
      return std::any_of(metrics.begin(), metrics.end(),
                         [&](const TaskMetric& metric) { return metric.name == mean.metric; });
    });
    if (!found)
      user_error("the group {} averages {}, which none of its tasks has", group.group.name,
                 mean.metric);
  }
}

}  // namespace

TaskEvaluation::TaskEvaluation(TaskSet tasks, const EvaluationOptions& options,
                               const ReadText& read)
    : groups_(std::move(tasks.groups)) {
  for (EvalTask& task : tasks.tasks) prepare(std::move(task), options, read);
  for (const PreparedTask& task : tasks_) check_labels(task);
  for (const PreparedTask& task : tasks_)
    for (const TaskMetric& metric : task.task.metrics) check_metric(task, metric);
  for (const TaskSet::Group& group : groups_) check_group(group, tasks_);
  if (!options.contamination.empty()) find_contamination(options, read);
}

void TaskEvaluation::find_contamination(const EvaluationOptions& options, const ReadText& read) {
  const ContaminationReports reports(options.contamination);
  for (PreparedTask& task : tasks_) {
    // A report is about all questions, also those beyond the limit.
    const std::size_t evaluated = task.requests.size();
    task.contamination =
        evaluated == task.all_documents
            ? reports.of(task.task, task.data, evaluated)
            : reports.of(task.task, read_documents(task.task, task.task.split, read), evaluated);
    if (task.contamination->out_of_reach > 0)
      log_note("{}: {} of {} questions were out of reach of the search, and count as clean",
               task.task.name, task.contamination->out_of_reach, task.all_documents);
  }
  for (const std::string& path : reports.with_removed_documents())
    log_note("{}: the documents with questions were removed from this corpus", path);
}

void TaskEvaluation::prepare(EvalTask task, const EvaluationOptions& options,
                             const ReadText& read) {
  PreparedTask& prepared = tasks_.emplace_back();
  if (options.shots && task.output_type != OutputType::LoglikelihoodRolling)
    task.shots = *options.shots;
  prepared.task = std::move(task);
  const EvalTask& own = prepared.task;
  const bool whole = own.shots > 0 || !options.limit || *options.limit < 1;
  prepared.data = read_documents(own, own.split, read,
                                 whole ? SIZE_MAX : static_cast<std::size_t>(*options.limit));
  const bool apart = own.shots > 0 && own.samples.empty() && own.fewshot_split != own.split;
  const std::vector<EvalDocument> others =
      apart ? read_documents(own, own.fewshot_split, read).documents : own.samples;
  FewShotSampler sampler(own, apart || !own.samples.empty() ? others : prepared.data.documents,
                         options.fewshot_seed);
  prepared.all_documents = prepared.data.all;
  const std::size_t count =
      std::min(documents_of(options, prepared.all_documents), prepared.data.documents.size());
  for (std::size_t i = 0; i < count; ++i)
    prepared.requests.push_back(with_origin(
        prepared, i, [&] { return make_requests(own, prepared.data.documents[i], sampler); }));
  prepared.data.documents.resize(count);
}

std::vector<TaskAnswers> TaskEvaluation::ask(ScoringModel& model, const Progress& progress) const {
  std::vector<TaskAnswers> answers(tasks_.size());
  AskedTokens asked(model);
  for (std::size_t i = 0; i < tasks_.size(); ++i) asked.add(tasks_[i], answers[i]);
  asked.ask(progress);
  asked.finish();
  return answers;
}

}  // namespace kintsugi
