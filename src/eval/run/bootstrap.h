#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eval/run/python_random.h"

namespace kintsugi {

// The standard deviation of a statistic over samples of the documents with replacement, drawn as
// lm-evaluation-harness does. `statistic` is given the indices of a sample. Empty for fewer than
// two documents or samples.
template <class Statistic>
std::optional<double> bootstrap_stderr(std::size_t documents, std::int64_t samples,
                                       Statistic&& statistic) {
  if (documents < 2 || samples < 2) return std::nullopt;
  const std::int64_t chunk = std::min<std::int64_t>(1000, samples);
  std::vector<std::size_t> chosen(documents);
  std::vector<double> values;
  for (std::int64_t seed = 0; seed < samples / chunk; ++seed) {
    PythonRandom random(static_cast<std::uint64_t>(seed));
    for (std::int64_t i = 0; i < chunk; ++i) {
      for (std::size_t& index : chosen) index = random.choice(documents);
      values.push_back(statistic(std::span<const std::size_t>(chosen)));
    }
  }
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double centre = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - centre) * (value - centre);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace kintsugi
