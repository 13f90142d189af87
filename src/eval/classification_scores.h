#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kintsugi {

// How well a classifier finds one label.
struct LabelScore {
  double precision = 0, recall = 0, f1 = 0;  // 0 where nothing can be divided
  std::int64_t documents = 0;                // that have the label
};

// Counts of documents by their label and the predicted one, and the scores that follow from them.
class ConfusionMatrix {
 public:
  // With more labels than this, only the sums by label are kept.
  static constexpr std::size_t kMostLabels = 256;

  explicit ConfusionMatrix(std::size_t labels)
      : labels_(labels), counts_(3 * labels + (labels <= kMostLabels ? labels * labels : 0)) {}

  std::size_t labels() const { return labels_; }
  bool is_full() const { return labels_ <= kMostLabels; }
  void add(std::int32_t label, std::int32_t predicted);
  void add(const ConfusionMatrix& other);
  double count(std::size_t label, std::size_t predicted) const {
    return counts_[3 * labels_ + label * labels_ + predicted];
  }
  // All numbers of the matrix, for sums over ranks.
  std::span<double> counts() { return counts_; }

  double documents() const;
  double accuracy() const;  // also the micro F1: each document has one label and one prediction
  // The mean of the F1 of all labels that a document has or that were predicted.
  double macro_f1() const;
  LabelScore score(std::size_t label) const;

 private:
  double has(std::size_t label) const { return counts_[label]; }
  double predicted(std::size_t label) const { return counts_[labels_ + label]; }
  double right(std::size_t label) const { return counts_[2 * labels_ + label]; }

  std::size_t labels_;
  // By label: documents, predictions, right predictions; then the matrix (labels, predictions).
  // Doubles are exact up to 2^53.
  std::vector<double> counts_;
};

// The label with the largest logit, the first one of equal ones.
std::int32_t predicted_label(std::span<const double> logits);
std::vector<double> probabilities_of(std::span<const double> logits);

// A table with precision, recall and F1 of each label, and the confusion matrix below it if there
// are few labels.
std::string scores_table(const ConfusionMatrix& matrix, const std::vector<std::string>& labels);
// The same as a JSON object: step, accuracy, macro_f1, micro_f1, labels, confusion_matrix.
std::string scores_json(const ConfusionMatrix& matrix, const std::vector<std::string>& labels,
                        std::int64_t step);

}  // namespace kintsugi
