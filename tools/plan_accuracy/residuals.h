#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plan/search/interval.h"
#include "plan_accuracy/measured_rows.h"

namespace kintsugi {

// A measured step time beside its prediction.
struct Residual {
  StepKind kind = StepKind::Nodes;
  std::string dataset = {}, job = {}, layout = {};
  bool fitted = false;  // in the half that constants were chosen on
  double predicted = 0, measured = 0;

  double log_error() const;  // ln(measured / predicted)
};

// Those of a table. Rows of jobs that may have slow messages (Program::slow_nodes) are left out:
// these are a property of one program.
std::vector<Residual> residuals(const CsvTable& table,
                                const std::vector<RowPrediction>& predictions);

// The job of a row: what remains if the layout changes.
std::string job_of(const CsvTable& table, std::size_t row);

// What 90 % of the residuals of each kind are within, and which differences of a job's layouts mean
// something. Of the quantile over rows and the one in which each source weighs the same, the larger
// one counts: rows of one source are alike.
std::vector<StepInterval> learn_intervals(std::span<const Residual> residuals);

// The smallest value with at least this share of the weight at or below it.
double weighted_quantile(std::vector<std::pair<double, double>> value_and_weight, double share);

// The share of these residuals that is within the intervals.
double coverage(const std::vector<StepInterval>& intervals, std::span<const Residual> residuals);

// The file uncertainty/step_time.yaml: what was learned from all rows, and how much of each half is
// within what the other half teaches.
std::string intervals_file(const std::vector<Residual>& residuals, const std::string& source,
                           const std::string& date);

}  // namespace kintsugi
