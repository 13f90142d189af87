#include "eval/classification_scores.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/table.h"

namespace kintsugi {
namespace {

using ScoresJson = nlohmann::ordered_json;
constexpr std::size_t kMostColumns = 12;  // of a confusion matrix in a table

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

std::string shortened(const std::string& label, std::size_t width) {
  const std::string text = printable(label);
  return text.size() <= width ? text : text.substr(0, width - 1) + "~";
}

constexpr std::size_t kName = 24;  // characters of a label in a table

Table label_table(const ConfusionMatrix& matrix, const std::vector<std::string>& labels) {
  Table table({Column::text("label", "label"), Column::number("precision", "precision", "{:.4f}"),
               Column::number("recall", "recall", "{:.4f}"), Column::number("F1", "f1", "{:.4f}"),
               Column::number("documents", "documents")});
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const LabelScore one = matrix.score(i);
    table.add({{labels[i], shortened(labels[i], kName)},
               one.precision,
               one.recall,
               one.f1,
               one.documents});
  }
  return table;
}

}  // namespace

void ConfusionMatrix::add(std::int32_t label, std::int32_t predicted) {
  const auto own = static_cast<std::size_t>(label), other = static_cast<std::size_t>(predicted);
  ++counts_[own];
  ++counts_[labels_ + other];
  if (own == other) ++counts_[2 * labels_ + own];
  if (is_full()) ++counts_[3 * labels_ + own * labels_ + other];
}

void ConfusionMatrix::add(const ConfusionMatrix& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
}

double ConfusionMatrix::documents() const {
  double sum = 0;
  for (std::size_t i = 0; i < labels_; ++i) sum += has(i);
  return sum;
}

double ConfusionMatrix::accuracy() const {
  double sum = 0;
  for (std::size_t i = 0; i < labels_; ++i) sum += right(i);
  return ratio(sum, documents());
}

LabelScore ConfusionMatrix::score(std::size_t label) const {
  return {.precision = ratio(right(label), predicted(label)),
          .recall = ratio(right(label), has(label)),
          .f1 = ratio(2 * right(label), has(label) + predicted(label)),
          .documents = static_cast<std::int64_t>(has(label))};
}

double ConfusionMatrix::macro_f1() const {
  double sum = 0, counted = 0;
  for (std::size_t i = 0; i < labels_; ++i) {
    if (has(i) + predicted(i) == 0) continue;
    sum += score(i).f1;
    ++counted;
  }
  return ratio(sum, counted);
}

std::int32_t predicted_label(std::span<const double> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<double> probabilities_of(std::span<const double> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> all;
  double total = 0;
  for (const double logit : logits) total += all.emplace_back(std::exp(logit - largest));
  for (double& probability : all) probability /= total;
  return all;
}

std::string scores_table(const ConfusionMatrix& matrix, const std::vector<std::string>& labels) {
  constexpr std::size_t kCell = 9;
  std::string text = label_table(matrix, labels).text();
  if (labels.size() > kMostColumns) return text;
  std::vector<Column> columns = {Column::text("label \\ predicted")};
  for (const std::string& label : labels)
    columns.push_back(Column::number(shortened(label, kCell), "", "{:.0f}"));
  Table counts(std::move(columns));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::vector<Cell> cells = {shortened(labels[i], kName)};
    for (std::size_t j = 0; j < labels.size(); ++j) cells.push_back(matrix.count(i, j));
    counts.add(std::move(cells));
  }
  return text + counts.text();
}

std::string scores_json(const ConfusionMatrix& matrix, const std::vector<std::string>& labels,
                        std::int64_t step) {
  ScoresJson json = {{"step", step},
                     {"documents", static_cast<std::int64_t>(matrix.documents())},
                     {"accuracy", matrix.accuracy()},
                     {"macro_f1", matrix.macro_f1()},
                     {"micro_f1", matrix.accuracy()}};
  json["labels"] = label_table(matrix, labels).json();
  if (matrix.is_full()) json["confusion_matrix"] = ScoresJson::array();
  for (std::size_t i = 0; i < labels.size() && matrix.is_full(); ++i) {
    ScoresJson row = ScoresJson::array();
    for (std::size_t j = 0; j < labels.size(); ++j)
      row.push_back(static_cast<std::int64_t>(matrix.count(i, j)));
    json["confusion_matrix"].push_back(std::move(row));
  }
  return json.dump(1, ' ', false, ScoresJson::error_handler_t::replace) + "\n";
}

}  // namespace kintsugi
