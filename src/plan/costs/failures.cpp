#include "plan/costs/failures.h"

#include <cmath>

namespace kintsugi {

double best_interval_s(const FailingRun& run) {
  const double half = run.save_s / (2 * run.mtbf_s);
  if (half >= 1) return run.mtbf_s;
  return std::sqrt(2 * run.save_s * run.mtbf_s) * (1 + std::sqrt(half) / 3 + half / 9) - run.save_s;
}

ExpectedTime expected_time(const FailingRun& run, double interval_s) {
  // A stretch of length t without failures is expected after M (e^(t/M) - 1), of which the last t
  // succeed; e^(t/M) - 1 attempts before fail. Restarts are such stretches themselves.
  const double failures = std::expm1((interval_s + run.save_s) / run.mtbf_s);
  return {.trained_s = run.mtbf_s * failures,
          .restarted_s = failures * run.mtbf_s * std::expm1(run.restart_s / run.mtbf_s)};
}

std::int64_t spare_nodes(double failures_until_repairs, double probability) {
  // The logarithms of a Poisson distribution, because e^-mean may be 0.
  const double mean = failures_until_repairs;
  if (mean <= 0) return 0;
  double sum = 0;
  for (std::int64_t n = 0;; ++n) {
    const double count = static_cast<double>(n);
    sum += std::exp(count * std::log(mean) - mean - std::lgamma(count + 1));
    // Beyond ten standard deviations the sum only has rounding errors.
    if (sum >= probability || count > mean + 10 * std::sqrt(mean) + 10) return n;
  }
}

}  // namespace kintsugi
