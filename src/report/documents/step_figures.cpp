#include "report/documents/step_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "core/statistics.h"

namespace kintsugi {
namespace {

// The finite values of a key.
std::vector<double> values_of(const StepSeries& series, const std::string& key) {
  std::vector<double> values;
  for (std::size_t row = 0; row < series.rows(); ++row)
    if (const float value = series.value(key, row); std::isfinite(value))
      values.push_back(static_cast<double>(value));
  return values;
}

std::optional<double> median_of(const StepSeries& series, const std::string& key) {
  const std::vector<double> values = values_of(series, key);
  return values.empty() ? std::nullopt : std::optional(median(values));
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// A series of very many steps keeps means of neighbours: the mean that has the step.
float loss_at(const StepSeries& series, std::int64_t step) {
  const std::size_t row = series.first_row_after(static_cast<double>(step) - 0.5);
  if (row == series.rows()) return StepColumn::kNone;
  const bool merged = series.records() > static_cast<std::int64_t>(series.rows());
  if (series.step(row) != static_cast<double>(step) && !merged) return StepColumn::kNone;
  return series.value("loss", row);
}

float valid_between(const StepSeries& series, std::int64_t above, std::int64_t step) {
  std::size_t row = series.first_row_after(static_cast<double>(step));
  for (; row > 0 && series.step(row - 1) > static_cast<double>(above); --row)
    if (const float value = series.value("valid_loss", row - 1); !std::isnan(value)) return value;
  return StepColumn::kNone;
}

}  // namespace

StepFigures step_figures(const StepSeries& series, const std::vector<std::int64_t>& table_steps) {
  StepFigures figures{.steps = series.records(),
                      .mfu = median_of(series, "mfu"),
                      .mfu_full_attention = median_of(series, "mfu_full_attention"),
                      .step_time_s = median_of(series, "step_time_s")};
  std::int64_t above = 0;
  for (const std::int64_t step : table_steps) {
    figures.losses.push_back({loss_at(series, step), valid_between(series, above, step)});
    above = step;
  }
  if (const std::vector<double> rates = values_of(series, "tokens_per_s"); !rates.empty()) {
    figures.rate_p10 = quantile(rates, 0.1);
    figures.rate = median(rates);
    figures.rate_p90 = quantile(rates, 0.9);
  }
  const std::vector<double> waits = values_of(series, "data_wait_s");
  const double spent_s = sum_of(values_of(series, "step_time_s"));
  if (!waits.empty() && spent_s > 0) figures.data_wait = sum_of(waits) / spent_s;
  return figures;
}

std::vector<std::int64_t> loss_table_steps(const std::vector<std::int64_t>& last_steps) {
  constexpr std::int64_t kLargest = 1'000'000'000'000'000;
  std::vector<std::int64_t> steps;
  for (const std::int64_t last : last_steps)
    if (last > 0 && last <= kLargest) steps.push_back(last);
  if (steps.empty()) return steps;
  const std::int64_t highest = *std::max_element(steps.begin(), steps.end());
  for (std::int64_t decade = 1; decade < highest; decade *= 10)
    for (const std::int64_t factor : {1, 2, 5})
      if (factor * decade < highest) steps.push_back(factor * decade);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

}  // namespace kintsugi
