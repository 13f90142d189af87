#include "plan_accuracy/residuals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace kintsugi {

constexpr double kLevel = 0.9;
// A difference that is larger than the error of 80 % of the pairs: half of the others err to the
// other side.
constexpr double kPairLevel = 0.8;
constexpr std::size_t kFewPairs = 10;  // with fewer, two layouts err independently
constexpr double kComparable = 1.5;    // only layouts that are predicted within this factor

double Residual::log_error() const { return std::log(measured / predicted); }

std::string job_of(const CsvTable& table, std::size_t row) {
  std::string key;
  for (const char* column :
       {"dataset", "model", "layers", "hidden", "seq", "gpus", "GBS", "hardware"})
    key += table.at(row, column) + "|";
  return key;
}

std::vector<Residual> residuals(const CsvTable& table,
                                const std::vector<RowPrediction>& predictions) {
  std::vector<Residual> all;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const RowPrediction& p = predictions[i];
    const double measured = table.number(i, "step_time_s");
    if (table.at(i, "status") != "measured" || !(measured > 0) || p.step_s == 0 ||
        p.slow_chance > 0)
      continue;
    all.push_back({.kind = p.kind,
                   .dataset = table.at(i, "dataset"),
                   .job = job_of(table, i) + table.at(i, "precision"),
                   .layout = to_string(p.evaluation.layout),
                   .fitted = table.at(i, "fitted") == "1",
                   .predicted = p.step_s,
                   .measured = measured});
  }
  return all;
}

double weighted_quantile(std::vector<std::pair<double, double>> values, double share) {
  std::sort(values.begin(), values.end());
  double all = 0, sum = 0;
  for (const auto& [value, weight] : values) all += weight;
  for (const auto& [value, weight] : values)
    if ((sum += weight) >= share * all * (1 - 1e-12)) return value;
  return values.empty() ? 0 : values.back().first;
}

namespace {

double within_of(const std::vector<const Residual*>& rows) {
  std::map<std::string, int> of_source;
  for (const Residual* row : rows) ++of_source[row->dataset];
  std::vector<std::pair<double, double>> alike, by_source;
  for (const Residual* row : rows) {
    const double error = std::abs(row->log_error());
    alike.emplace_back(error, 1);
    by_source.emplace_back(error, 1.0 / of_source[row->dataset]);
  }
  // Of n rows the next one is within the k-th smallest error with probability k / (n + 1).
  const double n = static_cast<double>(rows.size());
  const double share = std::min(1.0, std::ceil(kLevel * (n + 1)) / n);
  return std::exp(std::max(weighted_quantile(alike, share), weighted_quantile(by_source, kLevel)));
}

double apart_of(const std::vector<const Residual*>& rows) {
  std::map<std::string, std::vector<const Residual*>> jobs;
  for (const Residual* row : rows) jobs[row->job].push_back(row);
  std::vector<std::pair<double, double>> errors;
  for (const auto& [job, of_job] : jobs)
    for (std::size_t i = 0; i < of_job.size(); ++i)
      for (std::size_t k = 0; k < i; ++k) {
        const Residual &a = *of_job[i], &b = *of_job[k];
        if (a.layout == b.layout ||
            std::max(a.predicted, b.predicted) > kComparable * std::min(a.predicted, b.predicted))
          continue;
        errors.emplace_back(std::abs(a.log_error() - b.log_error()), 1);
      }
  if (errors.size() < kFewPairs) return std::pow(within_of(rows), 2);
  return std::exp(weighted_quantile(std::move(errors), kPairLevel));
}

double rounded(double factor) { return std::ceil(1000 * factor - 1e-9) / 1000; }

// The share of a source's rows that is within what the other sources teach.
double coverage_of_source(const std::vector<Residual>& all, const std::string& source) {
  std::vector<Residual> others, own;
  for (const Residual& row : all) (row.dataset == source ? own : others).push_back(row);
  return coverage(learn_intervals(others), own);
}

std::vector<Residual> half_of(const std::vector<Residual>& all, bool fitted) {
  std::vector<Residual> half;
  for (const Residual& row : all)
    if (row.fitted == fitted) half.push_back(row);
  return half;
}

}  // namespace

std::vector<StepInterval> learn_intervals(std::span<const Residual> all) {
  std::vector<StepInterval> intervals;
  for (std::size_t i = 0; i < kEnumWords<StepKind>.size(); ++i) {
    const auto kind = static_cast<StepKind>(i);
    std::vector<const Residual*> rows;
    for (const Residual& row : all)
      if (row.kind == kind) rows.push_back(&row);
    if (rows.empty()) continue;
    intervals.push_back({.kind = kind,
                         .rows = std::ssize(rows),
                         .within = rounded(within_of(rows)),
                         .apart = rounded(apart_of(rows))});
  }
  return intervals;
}

double coverage(const std::vector<StepInterval>& intervals, std::span<const Residual> all) {
  const auto inside = std::count_if(all.begin(), all.end(), [&](const Residual& row) {
    return std::any_of(intervals.begin(), intervals.end(), [&](const StepInterval& one) {
      return one.kind == row.kind && std::abs(row.log_error()) <= std::log(one.within);
    });
  });
  return static_cast<double>(inside) / static_cast<double>(all.size());
}

std::string intervals_file(const std::vector<Residual>& all, const std::string& source,
                           const std::string& date) {
  const std::vector<Residual> first = half_of(all, true), second = half_of(all, false);
  std::set<std::string> sources;
  for (const Residual& row : all) sources.insert(row.dataset);
  double mean = 0, least = 1;
  for (const std::string& one : sources) {
    const double held = coverage_of_source(all, one);
    mean += held / static_cast<double>(sources.size());
    least = std::min(least, held);
  }
  return fmt::format(
             "# How far measured step times were from predicted ones. Written by\n"
             "#   plan_accuracy {} --intervals > uncertainty/step_time.yaml\n"
             "# What one half of the layouts teaches holds {:.1f} % of the rows of the other half, "
             "and the other\n# way round {:.1f} %. What all other sources teach holds {:.1f} % of "
             "a "
             "source's rows, the mean of the\n# sources; {:.1f} % of those of the worst one.\n",
             source, 100 * coverage(learn_intervals(first), second),
             100 * coverage(learn_intervals(second), first), 100 * mean, 100 * least) +
         to_yaml({.learned = date,
                  .from = fmt::format("{} rows of {} sources of {}", all.size(), sources.size(),
                                      source),
                  .kinds = learn_intervals(all)});
}

}  // namespace kintsugi
