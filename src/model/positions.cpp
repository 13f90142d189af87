#include "model/positions.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace kintsugi {

std::vector<double> rope_frequencies(const RopeSpec& spec) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < spec.dim / 2; ++i) {
    double f = std::pow(spec.theta, -2.0 * static_cast<double>(i) / static_cast<double>(spec.dim));
    if (spec.scaling) {
      const RopeScaling& s = *spec.scaling;
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

std::vector<double> rope_table(const RopeSpec& spec, std::int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(spec);
  const std::int64_t half = spec.dim / 2;
  std::vector<double> table(static_cast<std::size_t>(positions * spec.dim));
  for (std::int64_t position = 0; position < positions; ++position)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(i)];
      table[static_cast<std::size_t>(position * spec.dim + i)] = std::cos(angle);
      table[static_cast<std::size_t>(position * spec.dim + half + i)] = std::sin(angle);
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

Tensor PositionTables::rope(const RopeSpec& spec) const {
  const auto found = std::find_if(ropes.begin(), ropes.end(),
                                  [&](const auto& entry) { return entry.first == spec; });
  KINTSUGI_CHECK(found != ropes.end(), "no rotation table of dimension {}", spec.dim);
  return found->second;
}

PositionTables allocate_position_tables(Arena& arena, const ModelSpec& model, DType dtype,
                                        std::int64_t positions, int tp) {
  PositionTables tables;
  const auto add_rope = [&](const RopeSpec& spec) {
    for (const auto& entry : tables.ropes)
      if (entry.first == spec) return;
    tables.ropes.emplace_back(spec, arena.allocate(Region::Workspace, "rope table",
                                                   accumulator_of(dtype), {positions, spec.dim}));
  };
  for (const AttentionSpec* attention : sublayers_of<AttentionSpec>(model)) {
    if (attention->rope) add_rope(*attention->rope);
    if (attention->alibi && !tables.slopes)
      tables.slopes =
          arena.allocate(Region::Workspace, "alibi slopes", DType::F32, {attention->heads / tp});
  }
  return tables;
}

void fill_position_tables(Backend& backend, const PositionTables& tables, const ModelSpec& model,
                          int tp_rank) {
  if (tables.slopes) {
    const std::int64_t heads = tables.slopes.elements();
    const std::int64_t all = sublayers_of<AttentionSpec>(model).front()->heads;
    backend.upload(tables.slopes, alibi_slopes(all).data() + tp_rank * heads);
  }
  for (const auto& [spec, table] : tables.ropes) {
    const std::vector<double> values = rope_table(spec, table.extent(0));
    if (table.dtype() == DType::F64) {
      backend.upload(table, values.data());
    } else {
      const std::vector<float> narrow(values.begin(), values.end());
      backend.upload(table, narrow.data());
    }
  }
}

}  // namespace kintsugi
