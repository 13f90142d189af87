#include "data/sampling/megatron_blend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kintsugi {

double numpy_sum(std::span<const double> values) {
  constexpr std::size_t kLanes = 8, kBlock = 128;
  const std::size_t count = values.size();
  if (count > kBlock) {
    const std::size_t half = count / 2 - count / 2 % kLanes;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double sum = 0;
  std::size_t done = 0;
  if (count >= kLanes) {
    std::array<double, kLanes> lane;
    for (std::size_t i = 0; i < kLanes; ++i) lane[i] = values[i];
    for (done = kLanes; done + kLanes <= count; done += kLanes)
      for (std::size_t i = 0; i < kLanes; ++i) lane[i] += values[done + i];
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  for (; done < count; ++done) sum += values[done];
  return sum;
}

std::vector<double> megatron_normalized(const std::vector<double>& weights) {
  const double total = numpy_sum(weights);
  std::vector<double> normalized;
  for (const double weight : weights) normalized.push_back(weight / total);
  return normalized;
}

std::int64_t megatron_request(std::int64_t samples, double weight, MegatronVersion version) {
  const double exact = static_cast<double>(samples) * weight;
  return static_cast<std::int64_t>(version == MegatronVersion::V010
                                       ? std::ceil(exact * 1.005)
                                       : std::ceil(std::ceil(exact) * (1 + 0.005)));
}

MegatronBlend build_megatron_blend(const std::vector<double>& weights, std::int64_t samples) {
  MegatronBlend blend;
  blend.source.reserve(static_cast<std::size_t>(samples));
  blend.number.reserve(static_cast<std::size_t>(samples));
  std::vector<std::int64_t> counts(weights.size(), 0);
  for (std::int64_t k = 0; k < samples; ++k) {
    const auto position = static_cast<double>(std::max<std::int64_t>(k, 1));
    std::size_t chosen = 0;
    double most_behind = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double behind = weights[i] * position - static_cast<double>(counts[i]);
      if (behind > most_behind) {
        most_behind = behind;
        chosen = i;
      }
    }
    blend.source.push_back(static_cast<std::int16_t>(chosen));
    blend.number.push_back(counts[chosen]++);
  }
  return blend;
}

}  // namespace kintsugi
