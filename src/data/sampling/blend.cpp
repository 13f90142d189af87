#include "data/sampling/blend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr double kWhole = 0x1p52;  // shares are honoured to this fraction

// round(j * part / whole), ties up. Weights are below 2^62 in all, so nothing overflows.
std::int64_t portion(std::int64_t j, std::uint64_t part, std::uint64_t whole) {
  using Wide = unsigned __int128;
  return static_cast<std::int64_t>((2 * static_cast<Wide>(j) * part + whole) /
                                   (2 * static_cast<Wide>(whole)));
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// `samples` in proportion to the weights, by largest remainder.
std::vector<std::uint64_t> apportion(const std::vector<double>& weights, std::int64_t samples) {
  const double total = sum(weights);
  std::vector<std::uint64_t> counts;
  std::vector<double> remainders;
  std::int64_t left = samples;
  for (const double weight : weights) {
    const double ideal = static_cast<double>(samples) * weight / total;
    counts.push_back(static_cast<std::uint64_t>(ideal));
    remainders.push_back(ideal - std::floor(ideal));
    left -= static_cast<std::int64_t>(counts.back());
  }
  for (; left > 0; --left) {
    const auto most = std::max_element(remainders.begin(), remainders.end()) - remainders.begin();
    counts[static_cast<std::size_t>(most)] += 1;
    remainders[static_cast<std::size_t>(most)] = -1;
  }
  return counts;
}

// The most samples that each source may give.
std::vector<std::int64_t> limits_of(const std::vector<BlendSource>& sources) {
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> limits;
  for (const BlendSource& source : sources) {
    const double most = source.max_epochs * static_cast<double>(source.epoch);
    limits.push_back(source.max_epochs > 0 && most < 1e18 ? static_cast<std::int64_t>(most) : none);
  }
  return limits;
}

void check_enough(const std::vector<BlendSource>& sources, const std::vector<std::int64_t>& limits,
                  std::int64_t samples, std::int64_t length) {
  double most = 0, once = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    most += static_cast<double>(limits[i]);
    once += static_cast<double>(sources[i].epoch);
  }
  if (most >= static_cast<double>(samples)) return;
  const auto in_words = [&](double count) {
    return format_count(count * static_cast<double>(length));
  };
  user_error(
      "the run wants {} tokens ({} samples of {}), but the data holds {} in an epoch and {} within "
      "max_epochs: shorten the run, raise max_epochs or add data",
      in_words(static_cast<double>(samples)), samples, length, in_words(once), in_words(most));
}

// Whether no source comes near its limit, even if a Blend strays from its share.
bool far_from(const std::vector<std::int64_t>& limits, const std::vector<double>& weights,
              std::int64_t samples) {
  const double total = sum(weights);
  const double stray = 0.5 * static_cast<double>(std::bit_width(weights.size()));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double wanted = static_cast<double>(samples) * weights[i] / total;
    if (wanted + stray > static_cast<double>(limits[i])) return false;
  }
  return true;
}

std::vector<std::uint64_t> whole_shares(const std::vector<double>& weights) {
  const double total = sum(weights);
  std::vector<std::uint64_t> shares;
  for (const double weight : weights)
    shares.push_back(std::max<std::uint64_t>(
        1, static_cast<std::uint64_t>(std::llround(weight / total * kWhole))));
  return shares;
}

// How many of `samples` each source gives. Those that would pass their limit give that; what they
// leave raises the others, so look again.
std::vector<std::uint64_t> limited_counts(const std::vector<std::int64_t>& limits,
                                          std::vector<double> weights, std::int64_t samples) {
  std::vector<std::uint64_t> given(weights.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    const double total = sum(weights);
    const auto to_share = static_cast<double>(samples);
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (weights[i] > 0 && to_share * weights[i] / total > static_cast<double>(limits[i])) {
        weights[i] = 0;
        given[i] = static_cast<std::uint64_t>(limits[i]);
        samples -= limits[i];
        changed = true;
      }
  }
  if (samples == 0) return given;
  const std::vector<std::uint64_t> rest = apportion(weights, samples);
  for (std::size_t i = 0; i < given.size(); ++i) given[i] += rest[i];
  return given;
}

}  // namespace

Blend::Blend(const std::vector<std::uint64_t>& weights) : sums_{0} {
  for (const std::uint64_t weight : weights) sums_.push_back(sums_.back() + weight);
  KINTSUGI_CHECK(sums_.back() > 0 && sums_.back() < (std::uint64_t{1} << 62),
                 "the weights of a blend add up to {}", sums_.back());
}

Blend::Turn Blend::operator()(std::int64_t k) const {
  std::size_t begin = 0, end = sums_.size() - 1;
  while (end - begin > 1) {
    const std::size_t middle = (begin + end) / 2;
    const std::uint64_t left = sums_[middle] - sums_[begin], whole = sums_[end] - sums_[begin];
    const std::int64_t before = portion(k, left, whole);
    if (portion(k + 1, left, whole) > before) {
      end = middle;
      k = before;
    } else {
      begin = middle;
      k -= before;
    }
  }
  return {begin, k};
}

std::vector<double> temperature_weights(const std::vector<double>& sizes, double temperature) {
  const auto raised = [&](double unit) {
    std::vector<double> weights;
    for (const double size : sizes) weights.push_back(std::pow(size / unit, 1.0 / temperature));
    return weights;
  };
  std::vector<double> weights = raised(1);
  if (std::isfinite(sum(weights))) return weights;
  return raised(*std::max_element(sizes.begin(), sizes.end()));
}

std::vector<std::uint64_t> blend_weights(const std::vector<BlendSource>& sources,
                                         std::int64_t samples, std::int64_t length) {
  std::vector<double> weights;
  for (const BlendSource& source : sources) weights.push_back(source.weight);
  const std::vector<std::int64_t> limits = limits_of(sources);
  check_enough(sources, limits, samples, length);
  return far_from(limits, weights, samples) ? whole_shares(weights)
                                            : limited_counts(limits, weights, samples);
}

}  // namespace kintsugi
