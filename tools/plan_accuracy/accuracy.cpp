// The output for layouts: the CSV file and the table of errors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/statistics.h"
#include "plan_accuracy/residuals.h"

namespace kintsugi {

std::string evaluated_csv(const CsvTable& table, const std::vector<RowPrediction>& predictions) {
  std::vector<std::string> header = table.header();
  for (const char* name :
       {"predicted_step_time_s", "predicted_tokens_per_s_per_gpu", "predicted_mem_GB",
        "predicted_fits", "predicted_why", "predicted_slow_chance", "predicted_slow_s",
        "predicted_low_s", "predicted_high_s"})
    header.emplace_back(name);
  std::string text = csv_line(header);
  for (std::size_t i = 0; i < table.rows(); ++i) {
    const RowPrediction& p = predictions[i];
    std::vector<std::string> cells = table.row(i);
    const bool known = p.step_s > 0;
    cells.push_back(known ? fmt::format("{:.4g}", p.step_s) : "");
    cells.push_back(known ? fmt::format("{:.5g}", p.tokens_per_s_per_gpu) : "");
    cells.push_back(p.memory_gb > 0 ? fmt::format("{:.4g}", p.memory_gb) : "");
    cells.push_back(known || p.impossible ? (p.fits ? "1" : "0") : "");
    cells.push_back(p.why);
    cells.push_back(p.slow_chance > 0 ? fmt::format("{:.3f}", p.slow_chance) : "");
    cells.push_back(p.slow_chance > 0 ? fmt::format("{:.4g}", p.slow_s) : "");
    const double within = step_intervals().of(p.kind).within;
    // Of two states, slow messages or none, there is no one interval.
    const bool one_state = known && p.slow_chance == 0;
    cells.push_back(one_state ? fmt::format("{:.4g}", p.step_s / within) : "");
    cells.push_back(one_state ? fmt::format("{:.4g}", p.step_s * within) : "");
    text += csv_line(cells);
  }
  return text;
}

namespace {

struct Errors {
  std::vector<double> signed_errors = {};
  void add(double predicted, double measured) { signed_errors.push_back(predicted / measured - 1); }
  std::vector<double> absolute() const {
    std::vector<double> all = signed_errors;
    for (double& x : all) x = std::abs(x);
    return all;
  }
};

// The measured layout that the prediction would choose, against the best measured one.
struct Choice {
  double predicted = INFINITY, measured_of_chosen = 0, best = INFINITY;
  int rows = 0;
};

struct Group {
  Errors used, held_out, memory;
  int rows = 0, unknown = 0;
  int measured = 0, alarms = 0;      // ran; of these, predicted not to fit
  int oom = 0, oom_found = 0;        // out of memory; of these, predicted not to fit
  int failed = 0, failed_found = 0;  // failed for any reason; of these, predicted not to fit
  std::map<std::string, Choice> choices = {};
};

void add_row(const CsvTable& table, std::size_t i, const RowPrediction& p, Group& g) {
  ++g.rows;
  if (p.step_s == 0 && !p.impossible) {
    ++g.unknown;
    return;
  }
  const std::string& status = table.at(i, "status");
  g.oom += status == "oom";
  g.oom_found += status == "oom" && !p.fits;
  g.failed += status == "failed";
  g.failed_found += status == "failed" && !p.fits;
  if (status != "measured") return;
  ++g.measured;
  g.alarms += !p.fits;
  if (p.step_s == 0) return;
  const std::string& kind = table.at(i, "mem_kind");
  const bool binary = kind.find("GiB") != std::string::npos || kind.starts_with("nvidia-smi");
  const double memory = table.number(i, "mem_GB_per_gpu") * (binary ? 1.073741824 : 1);
  if (memory > 0) g.memory.add(p.memory_gb, memory);
  const double measured = table.number(i, "step_time_s");
  if (!(measured > 0)) return;
  const bool used = table.at(i, "fitted") == "1";
  (used ? g.used : g.held_out).add(p.step_s, measured);
  Choice& choice = g.choices[job_of(table, i)];
  ++choice.rows;
  choice.best = std::min(choice.best, measured);
  if (p.fits && p.step_s < choice.predicted) {
    choice.predicted = p.step_s;
    choice.measured_of_chosen = measured;
  }
}

std::string percent(double x) { return std::isnan(x) ? "-" : fmt::format("{:.1f}", 100 * x); }
std::string percentage(int found, int all) {
  return all == 0 ? "-" : fmt::format("{:.1f}", 100.0 * found / all);
}

}  // namespace

namespace {

// How many rows are within the intervals that plans print.
std::string coverage_text(const CsvTable& table, const std::vector<RowPrediction>& predictions) {
  const std::vector<Residual> all = residuals(table, predictions);
  std::string text;
  for (const StepInterval& one : step_intervals().kinds) {
    std::vector<Residual> rows;
    for (const Residual& row : all)
      if (row.kind == one.kind) rows.push_back(row);
    if (rows.empty()) continue;
    text += fmt::format("{}{} {:.1f} % of {} {}", text.empty() ? "" : "; ",
                        YamlScalar<StepKind>::format(one.kind),
                        100 * coverage(step_intervals().kinds, rows), rows.size(), one.text());
  }
  return text.empty() ? "" : "90 % intervals of plans: " + text + ".\n";
}

}  // namespace

std::string accuracy_table(const CsvTable& table, const std::vector<RowPrediction>& predictions) {
  std::map<std::string, Group> groups;
  for (std::size_t i = 0; i < table.rows(); ++i)
    add_row(table, i, predictions[i], groups[table.at(i, "dataset")]);
  std::string text = fmt::format(
      "{:<22}{:>6}{:>6} |{:>7}{:>8}{:>8}{:>8} |{:>8}{:>8}{:>8} |{:>7}{:>8}{:>8} |{:>8}\n",
      "percent", "rows", "timed", "MAPE", "median", "bias", "other", "memory", "median", "bias",
      "OOM", "failed", "alarms", "regret");
  for (const auto& [name, g] : groups) {
    Errors all = g.used;
    all.signed_errors.insert(all.signed_errors.end(), g.held_out.signed_errors.begin(),
                             g.held_out.signed_errors.end());
    std::vector<double> regrets;
    for (const auto& [key, choice] : g.choices)
      if (choice.rows > 1 && choice.measured_of_chosen > 0)
        regrets.push_back(choice.measured_of_chosen / choice.best - 1);
    text += fmt::format(
        "{:<22}{:>6}{:>6} |{:>7}{:>8}{:>8}{:>8} |{:>8}{:>8}{:>8} |{:>7}{:>8}{:>8} |{:>8}\n", name,
        g.rows, all.signed_errors.size(), percent(mean(g.used.absolute())),
        percent(median(all.absolute())), percent(mean(all.signed_errors)),
        percent(mean(g.held_out.absolute())), percent(mean(g.memory.absolute())),
        percent(median(g.memory.absolute())), percent(mean(g.memory.signed_errors)),
        percentage(g.oom_found, g.oom), percentage(g.failed_found, g.failed),
        percentage(g.alarms, g.measured), percent(median(regrets)));
  }
  return text +
         "MAPE: error of the step time, over the half of the layouts that was used to fit the "
         "constants; other: over the other half.\n"
         "memory: mean and median error of bytes per GPU. OOM, failed: percentage of these rows "
         "predicted not to fit; alarms: the same of rows that ran.\n"
         "regret: how much slower the predicted best of the measured layouts is than the measured "
         "best, median over jobs.\n" +
         coverage_text(table, predictions);
}

}  // namespace kintsugi
