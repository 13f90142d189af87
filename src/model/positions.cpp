#include "model/positions.h"

#include <cmath>
#include <numbers>

namespace kintsugi {

std::vector<double> rope_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
    double f = std::pow(config.rope_theta,
                        -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (config.rope_scaling) {
      const RopeScaling& s = *config.rope_scaling;
      const double wavelength = 2 * std::numbers::pi / f,
                   length = static_cast<double>(s.original_max_positions);
      if (wavelength > length / s.low_freq_factor) {
        f /= s.factor;
      } else if (wavelength > length / s.high_freq_factor) {
        const double smooth =
            (length / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
        f = (1 - smooth) * f / s.factor + smooth * f;
      }
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

std::vector<double> rope_table(const ModelConfig& config, std::int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const std::int64_t half = config.head_dim / 2;
  std::vector<double> table(static_cast<std::size_t>(positions * config.head_dim));
  for (std::int64_t position = 0; position < positions; ++position)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(i)];
      table[static_cast<std::size_t>(position * config.head_dim + i)] = std::cos(angle);
      table[static_cast<std::size_t>(position * config.head_dim + half + i)] = std::sin(angle);
    }
  return table;
}

std::vector<float> alibi_slopes(std::int64_t heads) {
  std::int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  const auto slope = [](std::int64_t of, std::int64_t exponent) {
    return static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(exponent) / static_cast<double>(of)));
  };
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < power; ++h) slopes.push_back(slope(power, h + 1));
  for (std::int64_t h = power; h < heads; ++h)
    slopes.push_back(slope(2 * power, 2 * (h - power) + 1));
  return slopes;
}

}  // namespace kintsugi
