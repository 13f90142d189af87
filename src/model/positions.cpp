#include "model/positions.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "model/declaration.h"

namespace kintsugi {

namespace {

double llama3_scaled(double f, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / f,
               length = static_cast<double>(s.original_max_positions);
  if (wavelength > length / s.low_freq_factor) return f / s.factor;
  if (wavelength <= length / s.high_freq_factor) return f;
  const double smooth =
      (length / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * f / s.factor + smooth * f;
}

// arXiv 2309.00071, rounded as in transformers.
double yarn_scaled(double f, std::int64_t i, const RopeSpec& spec) {
  const RopeScaling& s = *spec.scaling;
  const auto dim = static_cast<double>(spec.dim);
  // The dimension pair that makes this many rotations in the original length.
  const auto pair_of = [&](double turns) {
    const double length = static_cast<double>(s.original_max_positions);
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(spec.theta));
  };
  const double low = std::max(std::floor(pair_of(s.beta_fast)), 0.0),
               high = std::min(std::ceil(pair_of(s.beta_slow)), dim - 1);
  const double width = high > low ? high - low : 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
  return f / s.factor * ramp + f * (1 - ramp);
}

double attention_factor(const RopeSpec& spec) {
  if (!spec.scaling || spec.scaling->type != RopeScalingKind::Yarn) return 1;
  const RopeScaling& s = *spec.scaling;
  if (s.attention_factor > 0) return s.attention_factor;
  if (s.mscale > 0 && s.mscale_all_dim > 0)
    return yarn_magnitude(s, s.mscale) / yarn_magnitude(s, s.mscale_all_dim);
  return yarn_magnitude(s, 1);
}

}  // namespace

double yarn_magnitude(const RopeScaling& scaling, double m) {
  return scaling.factor > 1 ? 0.1 * m * std::log(scaling.factor) + 1 : 1;
}

std::vector<double> rope_frequencies(const RopeSpec& spec) {
  std::vector<double> frequencies;
  const std::int64_t pairs = spec.dim / 2;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double exponent =
        spec.adjacent
            ? static_cast<double>(i) / static_cast<double>(std::max<std::int64_t>(1, pairs - 1))
            : 2.0 * static_cast<double>(i) / static_cast<double>(spec.dim);
    const double f = std::pow(spec.theta, -exponent);
    frequencies.push_back(!spec.scaling ? f
                          : spec.scaling->type == RopeScalingKind::Yarn
                              ? yarn_scaled(f, i, spec)
                              : llama3_scaled(f, *spec.scaling));
  }
  return frequencies;
}

std::vector<double> rope_table(const RopeSpec& spec, std::int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(spec);
  const std::int64_t half = spec.dim / 2;
  const double factor = attention_factor(spec);
  std::vector<double> table(static_cast<std::size_t>(positions * spec.dim));
  for (std::int64_t position = 0; position < positions; ++position)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[i];
      table[position * spec.dim + i] = factor * std::cos(angle);
      table[position * spec.dim + half + i] = factor * std::sin(angle);
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

std::vector<float> retention_decays(std::int64_t heads) {
  std::vector<float> decays;
  for (std::int64_t h = 0; h < heads; ++h)
    decays.push_back(static_cast<float>(1.0 - std::exp2(-5.0 - static_cast<double>(h))));
  return decays;
}

Tensor PositionTables::rope(const RopeSpec& spec) const {
  const auto found =
      std::ranges::find_if(ropes, [&](const auto& entry) { return entry.first == spec; });
  KINTSUGI_CHECK(found != ropes.end(), "there is no RoPE table of dimension {}", spec.dim);
  return found->second;
}

PositionTables allocate_position_tables(Arena& arena, const std::vector<Declaration>& layers,
                                        DType dtype, std::int64_t positions) {
  PositionTables tables;
  const auto add_rope = [&](const RopeSpec& spec) {
    for (const auto& entry : tables.ropes)
      if (entry.first == spec) return;
    tables.ropes.emplace_back(spec, arena.allocate(Region::Workspace, "rope table",
                                                   accumulator_of(dtype), {positions, spec.dim}));
  };
  const auto add_heads = [&](Tensor& table, const char* name, std::int64_t heads) {
    if (!table && heads > 0) table = arena.allocate(Region::Workspace, name, DType::F32, {heads});
    KINTSUGI_CHECK(heads == 0 || table.elements() == heads, "layers with {} and {} heads share {}",
                   table.elements(), heads, name);
  };
  for (const Declaration& layer : layers)
    for (const PositionSpec& spec : layer.positions()) {
      if (spec.rope) add_rope(*spec.rope);
      add_heads(tables.slopes, "alibi slopes", spec.slopes);
      add_heads(tables.decays, "decays", spec.decays);
    }
  return tables;
}

void fill_position_tables(Backend& backend, const PositionTables& tables, const LayerRanks& ranks) {
  // Uploads this rank's part of the values of all heads.
  const auto fill = [&](const Tensor& table, std::vector<float> (*of_all)(std::int64_t heads)) {
    if (!table) return;
    const std::vector<float> all = of_all(ranks.tensor * table.elements());
    backend.upload(table, all.data() + ranks.tensor_rank * table.elements());
  };
  fill(tables.slopes, alibi_slopes);
  fill(tables.decays, retention_decays);
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
