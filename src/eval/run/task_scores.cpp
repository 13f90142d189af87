#include "eval/run/task_scores.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/error.h"
#include "eval/run/python_random.h"
#include "eval/scoring.h"
#include "eval/translation_scores.h"

namespace kintsugi {
namespace {

// The standard deviation of a statistic over samples of the documents with replacement, drawn as
// lm-evaluation-harness does. `statistic` is given the indices of a sample. Empty for fewer than
// two documents or samples.
template <class Statistic>
std::optional<double> bootstrap_stderr(std::size_t documents, std::int64_t samples,
                                       Statistic&& statistic) {
  if (documents < 2 || samples < 2) return std::nullopt;
  const std::int64_t chunk = std::min<std::int64_t>(1000, samples);
  std::vector<std::size_t> chosen(documents);
  std::vector<double> values;
  for (std::int64_t seed = 0; seed < samples / chunk; ++seed) {
    PythonRandom random(static_cast<std::uint64_t>(seed));
    for (std::int64_t i = 0; i < chunk; ++i) {
      for (std::size_t& index : chosen) index = random.choice(documents);
      values.push_back(statistic(std::span<const std::size_t>(chosen)));
    }
  }
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double centre = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - centre) * (value - centre);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

// A metric over all documents, and its value for each.
struct Scored {
  Metric metric;
  std::vector<EvalDocument> values;
};

Scored mean_of(const std::string& name, const std::vector<double>& values) {
  return {mean_metric(name, values), {values.begin(), values.end()}};
}

const Metric& metric_named(const std::vector<Metric>& metrics, const std::string& name,
                           const EvalTask& task) {
  for (const Metric& metric : metrics)
    if (metric.name == name) return metric;
  user_error(
      "{}: {} is not defined for these documents: it needs one right choice each, and the same "
      "number of choices",
      task.name, name);
}

// ---- multiple choice

class ChoiceScorer {
 public:
  ChoiceScorer(const PreparedTask& task, const TaskAnswers& answers, const ScoreOptions& options)
      : task_(task.task), options_(options) {
    for (std::size_t i = 0; i < answers.size(); ++i) {
      std::vector<double> unconditional;
      for (const ContinuationScore& score : answers[i].unconditional)
        unconditional.push_back(score.log_probability);
      scores_.push_back(score_multiple_choice(task.requests[i].choices, answers[i].scores,
                                              task.requests[i].gold, unconditional));
      gold_.push_back(scores_[i].gold.empty() ? -100 : scores_[i].gold.front());
      predicted_.push_back(scores_[i].predicted);
    }
    metrics_ = multiple_choice_metrics(scores_);
  }

  Scored score(const TaskMetric& metric) const {
    if (metric.name == "f1") return of_classes("f1", f1_score);
    if (metric.name == "mcc") return of_classes("mcc", matthews_correlation);
    Scored result{metric_named(metrics_, metric.name, task_), {}};
    for (std::size_t i = 0; i < scores_.size(); ++i)
      result.values.push_back(value_of(metric.name, i));
    return result;
  }

 private:
  EvalDocument value_of(const std::string& name, std::size_t i) const {
    const MultipleChoiceScore& score = scores_[i];
    if (name == "acc") return score.acc;
    if (name == "acc_norm") return score.acc_norm;
    if (name == "acc_bytes") return score.acc_bytes;
    if (name == "acc_mutual_info") return score.acc_mutual_info.value();
    if (name == "exact_match") return score.exact_match;
    return EvalDocument::array({gold_[i], score.probabilities});  // brier_score
  }
  template <class Statistic>
  Scored of_classes(const std::string& name, Statistic&& statistic) const {
    Scored result{{name, statistic(gold_, predicted_), std::nullopt}, {}};
    for (std::size_t i = 0; i < gold_.size(); ++i)
      result.values.push_back(EvalDocument::array({gold_[i], predicted_[i]}));
    std::vector<std::int64_t> gold(gold_.size()), predicted(gold_.size());
    result.metric.stderr_of_mean = bootstrap_stderr(
        gold.size(), options_.bootstrap_samples, [&](std::span<const std::size_t> chosen) {
          for (std::size_t i = 0; i < chosen.size(); ++i) {
            gold[i] = gold_[chosen[i]];
            predicted[i] = predicted_[chosen[i]];
          }
          return statistic(gold, predicted);
        });
    return result;
  }

  const EvalTask& task_;
  const ScoreOptions& options_;
  std::vector<MultipleChoiceScore> scores_;
  std::vector<std::int64_t> gold_, predicted_;
  std::vector<Metric> metrics_;
};

// ---- continuations and whole texts

Scored score_continuations(const TaskMetric& metric, const TaskAnswers& answers,
                           const ScoreOptions& options) {
  std::vector<double> greedy, logs;
  std::vector<ContinuationScore> scores;
  for (const DocumentAnswer& answer : answers) {
    scores.push_back(answer.scores.front());
    greedy.push_back(scores.back().is_greedy ? 1 : 0);
    logs.push_back(scores.back().log_probability);
  }
  if (metric.name == "acc") return mean_of("acc", greedy);
  Scored result{loglikelihood_metrics(scores).front(), {logs.begin(), logs.end()}};
  result.metric.stderr_of_mean = bootstrap_stderr(
      logs.size(), options.bootstrap_samples, [&](std::span<const std::size_t> chosen) {
        double sum = 0;
        for (const std::size_t i : chosen) sum += logs[i];
        return std::exp(-sum / static_cast<double>(chosen.size()));
      });
  return result;
}

Scored score_whole_texts(const TaskMetric& metric, const TaskAnswers& answers,
                         const EvalTask& task) {
  std::vector<RollingScore> scores;
  for (const DocumentAnswer& answer : answers) scores.push_back(answer.rolling);
  Scored result{metric_named(rolling_metrics(scores), metric.name, task), {}};
  for (const RollingScore& score : scores)
    result.values.push_back(EvalDocument::array(
        {score.log_probability, metric.name == "word_perplexity" ? score.words : score.bytes}));
  return result;
}

// ---- generated texts

// BLEU or chrF of some texts, each with any number of references.
double translation_score(const std::string& metric, const std::vector<DocumentRequests>& requests,
                         const Segments& all, std::span<const std::size_t> chosen) {
  std::size_t most = 0;
  for (const std::size_t i : chosen) most = std::max(most, requests[i].targets.size());
  std::vector<Segments> sets(most);
  Segments texts;
  for (const std::size_t i : chosen) {
    texts.push_back(all[i]);
    const std::vector<std::string>& targets = requests[i].targets;
    for (std::size_t k = 0; k < most; ++k) sets[k].push_back(k < targets.size() ? targets[k] : "");
  }
  const References references(std::move(sets), texts.size());
  return metric == "bleu" ? corpus_bleu(texts, references, {}).score
                          : corpus_chrf(texts, references, {});
}

Scored score_translations(const TaskMetric& metric, const PreparedTask& task, const Segments& texts,
                          const ScoreOptions& options) {
  const auto score = [&](std::span<const std::size_t> chosen) {
    return translation_score(metric.name, task.requests, texts, chosen);
  };
  std::vector<std::size_t> all(texts.size());
  Scored result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = i;
    result.values.push_back(EvalDocument::array({task.requests[i].targets, texts[i]}));
  }
  result.metric = {metric.name, score(all), std::nullopt};
  result.metric.stderr_of_mean =
      bootstrap_stderr(all.size(), std::min<std::int64_t>(100, options.bootstrap_samples), score);
  return result;
}

Scored score_texts(const TaskMetric& metric, const PreparedTask& task,
                   const std::vector<std::vector<Response>>& responses,
                   const ScoreOptions& options) {
  Segments texts;
  std::vector<double> values;
  ExactMatch match(metric.exact_match);
  for (std::size_t i = 0; i < responses.size(); ++i) {
    const Response response = responses[i].empty() ? Response() : responses[i].front();
    texts.push_back(response.value_or(""));
    const std::vector<std::string>& targets = task.requests[i].targets;
    values.push_back(metric.name == "f1" ? word_f1(texts.back(), targets)
                                         : match.score(response, targets));
  }
  if (metric.name == "bleu" || metric.name == "chrf")
    return score_translations(metric, task, texts, options);
  return mean_of(metric.name, values);
}

std::vector<FilteredAnswers> filtered(const PreparedTask& task, const TaskAnswers& answers) {
  std::vector<FilteredAnswers> result;
  std::vector<TaskFilter> filters = task.task.filters;
  if (filters.empty()) filters.push_back({"none", {}});
  for (const TaskFilter& filter : filters) {
    FilteredAnswers& one = result.emplace_back();
    one.filter = filter.name;
    if (task.task.output_type != OutputType::GenerateUntil) continue;
    const ResponseFilters steps = make_filters(filter);
    for (const DocumentAnswer& answer : answers)
      one.responses.push_back(apply_filters(steps, {answer.text}));
  }
  return result;
}

}  // namespace

TaskScores score_task(const PreparedTask& task, const TaskAnswers& answers,
                      const ScoreOptions& options) {
  const OutputType type = task.task.output_type;
  std::optional<ChoiceScorer> choices;
  if (type == OutputType::MultipleChoice) choices.emplace(task, answers, options);
  TaskScores result{{}, filtered(task, answers)};
  for (FilteredAnswers& filter : result.filters)
    for (const TaskMetric& metric : task.task.metrics) {
      Scored scored = choices ? choices->score(metric)
                      : type == OutputType::Loglikelihood
                          ? score_continuations(metric, answers, options)
                      : type == OutputType::LoglikelihoodRolling
                          ? score_whole_texts(metric, answers, task.task)
                          : score_texts(metric, task, filter.responses, options);
      result.metrics.push_back({metric.name, filter.filter, scored.metric.value,
                                scored.metric.stderr_of_mean, metric.higher_is_better});
      filter.per_metric.push_back(std::move(scored.values));
    }
  return result;
}

GroupScores score_group(const TaskSet::Group& group, const std::vector<PreparedTask>& prepared,
                        const std::vector<TaskScores>& tasks) {
  GroupScores result;
  for (const std::size_t task : group.tasks)
    result.documents += std::ssize(prepared[task].requests);
  for (const EvalGroup::Mean& mean : group.group.means) {
    std::vector<std::string> filters = mean.filters;
    if (filters.empty())
      for (const std::size_t task : group.tasks)
        for (const MetricValue& metric : tasks[task].metrics)
          if (metric.name == mean.metric &&
              std::count(filters.begin(), filters.end(), metric.filter) == 0)
            filters.push_back(metric.filter);
    for (const std::string& filter : filters) {
      std::vector<GroupMember> members;
      bool higher = true;
      for (const std::size_t task : group.tasks)
        for (const MetricValue& metric : tasks[task].metrics)
          if (metric.name == mean.metric && metric.filter == filter) {
            members.push_back({metric.value, metric.error, std::ssize(prepared[task].requests)});
            higher = metric.higher_is_better;
          }
      if (members.empty()) continue;
      const Metric value = group_metric(mean.metric, members, mean.weight_by_size);
      result.metrics.push_back({mean.metric, filter, value.value, value.stderr_of_mean, higher});
    }
  }
  return result;
}

}  // namespace kintsugi
