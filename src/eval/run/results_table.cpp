#include <fmt/format.h>

#include <algorithm>

#include "eval/run/results.h"
#include "eval/text.h"

namespace kintsugi {
namespace {

using Row = std::vector<std::string>;
enum class Align { Left, Right };

std::string padded(const std::string& text, std::size_t width, Align side) {
  const std::size_t length = count_code_points(text);
  const std::string space(width > length ? width - length : 0, ' ');
  return side == Align::Left ? text + space : space + text;
}

std::string centred(const std::string& text, std::size_t width) {
  const std::size_t length = count_code_points(text), space = width > length ? width - length : 0;
  return std::string(space / 2, ' ') + text + std::string(space - space / 2, ' ');
}

std::string markdown(const Row& header, const std::vector<Align>& sides,
                     const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < header.size(); ++i) {
    widths.push_back(std::max<std::size_t>(3, count_code_points(header[i])));
    for (const Row& row : rows) widths[i] = std::max(widths[i], count_code_points(row[i]));
  }
  std::string text = "|", line = "|";
  for (std::size_t i = 0; i < header.size(); ++i) {
    text += centred(header[i], widths[i]) + "|";
    line += std::string(widths[i] - 1, '-') + (sides[i] == Align::Right ? ":|" : "-|");
  }
  text += "\n" + line + "\n";
  for (const Row& row : rows) {
    text += "|";
    for (std::size_t i = 0; i < row.size(); ++i) text += padded(row[i], widths[i], sides[i]) + "|";
    text += "\n";
  }
  return text;
}

// The rows of one evaluation: of all questions, or of the clean ones.
class TableWriter {
 public:
  TableWriter(const TaskEvaluation& evaluation, const std::vector<EvaluationResults>& results,
              bool clean = false)
      : evaluation_(evaluation), clean_(clean), written_(evaluation.tasks().size(), false) {
    for (const EvaluationResults& one : results) results_.push_back(clean ? &*one.clean : &one);
  }

  std::vector<Row> tasks() {
    for (std::size_t i = 0; i < evaluation_.groups().size(); ++i)
      if (!evaluation_.groups()[i].nested) add_group(i, 0, true);
    for (std::size_t i = 0; i < written_.size(); ++i)
      if (!written_[i]) add_task(i, 0);
    return std::move(rows_);
  }
  std::vector<Row> groups() {
    for (std::size_t i = 0; i < evaluation_.groups().size(); ++i)
      if (!evaluation_.groups()[i].group.means.empty()) add_group(i, 0, false);
    return std::move(rows_);
  }

 private:
  static std::string indented(const std::string& name, std::size_t depth) {
    return depth == 0 ? name : std::string(depth, ' ') + "- " + name;
  }

  void add_task(std::size_t i, std::size_t depth) {
    const EvalTask& task = evaluation_.tasks()[i].task;
    written_[i] = true;
    std::vector<const std::vector<MetricValue>*> metrics;
    for (const Scores* one : results_) metrics.push_back(&one->tasks[i].metrics);
    add_rows({indented(task.alias.empty() ? task.name : task.alias, depth),
              clean_ ? questions_of({i}) : task.version},
             fmt::format("{}", task.shots), metrics);
  }

  void add_group(std::size_t i, std::size_t depth, bool with_children) {
    const TaskSet::Group& group = evaluation_.groups()[i];
    std::vector<const std::vector<MetricValue>*> metrics;
    for (const Scores* one : results_) metrics.push_back(&one->groups[i].metrics);
    const EvalGroup& own = group.group;
    add_rows({indented(own.alias.empty() ? own.name : own.alias, depth),
              clean_ ? questions_of(group.tasks) : own.version},
             shots_of(group), metrics);
    if (!with_children) return;
    for (const std::string& name : group.children) {
      for (std::size_t k = 0; k < i; ++k)
        if (evaluation_.groups()[k].group.name == name) add_group(k, depth + 1, true);
      for (const std::size_t task : group.tasks)
        if (evaluation_.tasks()[task].task.name == name) add_task(task, depth + 1);
    }
  }

  // "12/20": those that are left, and all.
  std::string questions_of(const std::vector<std::size_t>& tasks) const {
    std::int64_t left = 0, all = 0;
    for (const std::size_t task : tasks) {
      left += evaluation_.tasks()[task].contamination->clean();
      all += std::ssize(evaluation_.tasks()[task].requests);
    }
    return fmt::format("{}/{}", left, all);
  }

  std::string shots_of(const TaskSet::Group& group) const {
    const std::int64_t shots = evaluation_.tasks()[group.tasks.front()].task.shots;
    for (const std::size_t task : group.tasks)
      if (evaluation_.tasks()[task].task.shots != shots) return "";
    return fmt::format("{}", shots);
  }

  void add_rows(Row names, const std::string& shots,
                const std::vector<const std::vector<MetricValue>*>& metrics) {
    const std::size_t count = metrics.front()->size();
    if (count == 0) {  // a group without averages
      Row row = {names[0], names[1], "", shots, "", ""};
      for (std::size_t k = 0; k < 3 * metrics.size(); ++k) row.emplace_back();
      return rows_.push_back(std::move(row));
    }
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return (*metrics.front())[a].key() < (*metrics.front())[b].key();
    });
    for (const std::size_t i : order) {
      const MetricValue& first = (*metrics.front())[i];
      Row row = {names[0], names[1],   first.filter,
                 shots,    first.name, first.higher_is_better ? "↑" : "↓"};
      for (const std::vector<MetricValue>* model : metrics) {
        const MetricValue& metric = (*model)[i];
        row.push_back(fmt::format("{:.4f}", metric.value));
        row.emplace_back("±");
        row.push_back(metric.error ? fmt::format("{:.4f}", *metric.error) : "N/A");
      }
      rows_.push_back(std::move(row));
      names = {"", ""};
    }
  }

  const TaskEvaluation& evaluation_;
  bool clean_;
  std::vector<const Scores*> results_;  // by model
  std::vector<bool> written_;
  std::vector<Row> rows_;
};

}  // namespace

std::string results_table(const TaskEvaluation& evaluation,
                          const std::vector<EvaluationResults>& results,
                          const std::vector<std::string>& models) {
  Row header = {"Tasks", "Version", "Filter", "n-shot", "Metric", ""};
  std::vector<Align> sides = {Align::Left,  Align::Right, Align::Left,
                              Align::Right, Align::Left,  Align::Left};
  for (const std::string& model : models) {
    const std::string name = models.size() == 1 ? "Value" : model;
    header.insert(header.end(), {name, "", "Stderr"});
    sides.insert(sides.end(), {Align::Right, Align::Left, Align::Right});
  }
  const auto tables = [&](bool clean) {
    std::string text = markdown(header, sides, TableWriter(evaluation, results, clean).tasks());
    const std::vector<Row> groups = TableWriter(evaluation, results, clean).groups();
    if (groups.empty()) return text;
    header[0] = clean ? "Groups, clean questions" : "Groups";
    return text + "\n" + markdown(header, sides, groups);
  };
  const std::string text = tables(false);
  if (!has_contamination(evaluation)) return text;
  header[0] = "Clean questions";
  header[1] = "Left";
  return text + "\n" + tables(true);
}

}  // namespace kintsugi
