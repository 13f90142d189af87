#include "plan/search/tuning_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr std::size_t kShown = 5;

std::vector<Trial> successful(std::vector<Trial> trials) {
  std::erase_if(trials, [](const Trial& trial) { return !trial.result.ran(); });
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return a.result.tokens_per_s > b.result.tokens_per_s;
  });
  return trials;
}

// Equal values get the mean of their ranks.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<double> ranks;
  for (const double value : values) {
    double below = 0, equal = 0;
    for (const double other : values) {
      below += other < value;
      equal += other == value;
    }
    ranks.push_back(below + (equal - 1) / 2);
  }
  return ranks;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  double mean_a = 0, mean_b = 0, ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) mean_a += a[i] / n, mean_b += b[i] / n;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace

std::optional<Trial> best_of(const std::vector<Trial>& trials) {
  const std::vector<Trial> ran = successful(trials);
  return ran.empty() ? std::nullopt : std::optional(ran.front());
}

ModelAgreement agreement_of(const std::vector<Trial>& trials) {
  std::vector<double> predicted, measured, ratios;
  for (const Trial& trial : successful(trials)) {
    predicted.push_back(trial.predicted);
    measured.push_back(trial.result.tokens_per_s);
    ratios.push_back(trial.result.tokens_per_s / trial.predicted);
  }
  ModelAgreement agreement{.trials = ratios.size(), .correlation = NAN};
  if (!ratios.empty()) agreement.ratio = median(ratios);
  if (ratios.size() >= 3)
    agreement.correlation = correlation(ranks_of(predicted), ranks_of(measured));
  return agreement;
}

std::string tuning_table(const std::vector<Trial>& trials) {
  const std::vector<Trial> ran = successful(trials);
  std::string text = fmt::format("{:>12}{:>12}{:>8}  layout\n", "measured", "predicted", "ratio");
  for (std::size_t i = 0; i < std::min(kShown, ran.size()); ++i)
    text += fmt::format("{:>12}{:>12}{:>8.2f}  {}\n", format_count(ran[i].result.tokens_per_s),
                        format_count(ran[i].predicted),
                        ran[i].result.tokens_per_s / ran[i].predicted, to_string(ran[i].layout));
  const ModelAgreement agreement = agreement_of(trials);
  text += fmt::format("tokens/s; {}, {} failed", format_number(std::ssize(trials), "trial"),
                      trials.size() - ran.size());
  if (agreement.trials > 0)
    text += fmt::format("; measured / predicted: median {:.3g}", agreement.ratio);
  if (std::isfinite(agreement.correlation))
    text += fmt::format(", rank correlation {:.2f}", agreement.correlation);
  return text + "\n";
}

}  // namespace kintsugi
