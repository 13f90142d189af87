#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// The names of a value of a step in the files of a run; "": it is not in that file.
struct MetricNames {
  // How Prometheus combines the values of all steps.
  enum class Combine { Last, Highest, Sum };
  struct Prometheus {
    std::string name = {};
    std::string label = {}, value = {};  // beside the label of the run
    Combine combine = Combine::Last;     // another one only for counters: NAME_total
  };

  std::string json = {};  // key in metrics.jsonl
  std::string tag = {};   // in TensorBoard
  Prometheus prometheus = {};
  std::string help = {};  // the same in all metrics with the same Prometheus name
};

// A value that a step computes from its sums: factor * sum / targets.
struct DeclaredScalar {
  MetricNames names;
  MetricNames valid = {};  // of the same value of a validation; no key: it is not recorded
  double factor = 1;
  std::string label = {};                 // in log lines; empty: it is not shown there
  int digits = 4;                         // behind the point, in log lines
  std::size_t sum = 0;                    // its number
  std::optional<std::size_t> minus = {};  // another sum, whose mean is subtracted
};
struct ScalarValue {
  std::shared_ptr<const DeclaredScalar> of;
  double value = 0;
};
using ScalarValues = std::vector<ScalarValue>;
// By the key in metrics.jsonl. Fails if there is no such value.
double value_of(const ScalarValues& values, std::string_view key);

// What a step sums over its targets on all ranks, beginning with the loss, and the values that are
// computed from these sums. Objectives, layers and update rules declare theirs; whatever sums,
// writes or shows them iterates the declarations.
class StepScalars {
 public:
  // Declares a sum and its mean; returns the number of the sum.
  std::size_t add(DeclaredScalar scalar);
  // Declares the difference of two means.
  void add_difference(DeclaredScalar scalar, std::size_t of, std::size_t minus);

  std::size_t sums() const { return sums_; }
  ScalarValues values(std::span<const double> sums, double targets) const;

 private:
  std::size_t sums_ = 1;  // the first is that of the loss
  std::vector<std::shared_ptr<const DeclaredScalar>> named_;
};

}  // namespace kintsugi
