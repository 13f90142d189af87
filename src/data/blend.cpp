#include "data/blend.h"

#include <algorithm>
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

// `samples` in proportion to the weights, by largest remainder.
std::vector<std::uint64_t> apportion(const std::vector<double>& weights, std::int64_t samples) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
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

std::vector<std::uint64_t> blend_weights(const std::vector<BlendSource>& sources,
                                         std::int64_t samples, std::int64_t length) {
  std::vector<double> weights;
  for (const BlendSource& source : sources) weights.push_back(source.weight);
  const std::vector<std::int64_t> limits = limits_of(sources);
  check_enough(sources, limits, samples, length);
  // Those that would pass their limit get it; what they leave raises the others, so look again.
  std::vector<double> open = weights;  // 0: at its limit
  std::int64_t left = samples;
  for (bool changed = true; changed;) {
    changed = false;
    const double total = std::accumulate(open.begin(), open.end(), 0.0);
    const auto to_share = static_cast<double>(left);
    for (std::size_t i = 0; i < open.size(); ++i)
      if (open[i] > 0 && to_share * open[i] / total > static_cast<double>(limits[i])) {
        open[i] = 0;
        left -= limits[i];
        changed = true;
      }
  }
  if (left == samples) {  // no limit is reached: the order does not depend on the run's length
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<std::uint64_t> shares;
    for (const double weight : weights)
      shares.push_back(std::max<std::uint64_t>(
          1, static_cast<std::uint64_t>(std::llround(weight / total * kWhole))));
    return shares;
  }
  std::vector<std::uint64_t> counts(sources.size(), 0);
  if (left > 0) counts = apportion(open, left);
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (open[i] == 0) counts[i] = static_cast<std::uint64_t>(limits[i]);
  return counts;
}

}  // namespace kintsugi
