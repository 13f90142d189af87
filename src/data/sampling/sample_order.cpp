#include "data/sampling/sample_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr double kWeightScale = 0x1p52;  // integer weights add up to about this

// round(j * part / total), ties up. The sum of the weights is below 2^62, so nothing overflows.
std::int64_t proportion(std::int64_t j, std::uint64_t part, std::uint64_t total) {
  using Wide = unsigned __int128;
  return static_cast<std::int64_t>((2 * static_cast<Wide>(j) * part + total) /
                                   (2 * static_cast<Wide>(total)));
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Distributes `samples` in proportion to the weights by the largest-remainder method.
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

// The maximum number of samples of each source.
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
  const auto format_tokens = [&](double count) {
    return format_count(count * static_cast<double>(length));
  };
  user_error(
      "the run needs {} tokens ({} samples of {}), but the data has {} in an epoch and {} within "
      "max_epochs: shorten the run, raise max_epochs or add data",
      format_tokens(static_cast<double>(samples)), samples, length, format_tokens(once),
      format_tokens(most));
}

// Whether all sources stay below their limits, even where a Blend deviates from exact proportions.
bool within_limits(const std::vector<std::int64_t>& limits, const std::vector<double>& weights,
                   std::int64_t samples) {
  const double total = sum(weights);
  const double deviation = 0.5 * static_cast<double>(std::bit_width(weights.size()));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double expected = static_cast<double>(samples) * weights[i] / total;
    if (expected + deviation > static_cast<double>(limits[i])) return false;
  }
  return true;
}

std::vector<std::uint64_t> integer_weights(const std::vector<double>& weights) {
  const double total = sum(weights);
  std::vector<std::uint64_t> integers;
  for (const double weight : weights)
    integers.push_back(std::max<std::uint64_t>(
        1, static_cast<std::uint64_t>(std::llround(weight / total * kWeightScale))));
  return integers;
}

// The number of samples of each source. A source that would exceed its limit gives its limit; this
// raises the counts of the others, so they are checked again.
std::vector<std::uint64_t> limited_counts(const std::vector<std::int64_t>& limits,
                                          std::vector<double> weights, std::int64_t samples) {
  std::vector<std::uint64_t> counts(weights.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    const double total = sum(weights);
    const auto remaining = static_cast<double>(samples);
    for (std::size_t i = 0; i < weights.size(); ++i)
      if (weights[i] > 0 && remaining * weights[i] / total > static_cast<double>(limits[i])) {
        weights[i] = 0;
        counts[i] = static_cast<std::uint64_t>(limits[i]);
        samples -= limits[i];
        changed = true;
      }
  }
  if (samples == 0) return counts;
  const std::vector<std::uint64_t> rest = apportion(weights, samples);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += rest[i];
  return counts;
}

}  // namespace

Blend::Blend(const std::vector<std::uint64_t>& weights) : sums_{0} {
  for (const std::uint64_t weight : weights) sums_.push_back(sums_.back() + weight);
  KINTSUGI_CHECK(sums_.back() > 0 && sums_.back() < (std::uint64_t{1} << 62),
                 "the weights of a blend add up to {}", sums_.back());
}

Blend::Choice Blend::operator()(std::int64_t k) const {
  std::size_t begin = 0, end = sums_.size() - 1;
  while (end - begin > 1) {
    const std::size_t middle = (begin + end) / 2;
    const std::uint64_t left = sums_[middle] - sums_[begin], total = sums_[end] - sums_[begin];
    const std::int64_t before = proportion(k, left, total);
    if (proportion(k + 1, left, total) > before) {
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
  return within_limits(limits, weights, samples) ? integer_weights(weights)
                                                 : limited_counts(limits, weights, samples);
}

std::uint64_t SampleOrder::fingerprint() const {
  const std::uint64_t key = seed();
  return hash64(&key, sizeof(key), unseeded_fingerprint());
}

Windows::Windows(std::int64_t tokens, std::int64_t length) {
  if (tokens <= length) return;
  count = (tokens - 1) / length;
  slack = (tokens - 1) % length + 1;
  if (count > 1) {
    count -= 1;
    slack += length;
  }
}

WindowSamples::WindowSamples(const TokenStream& stream, std::int64_t length)
    : stream_(&stream), length_(length), windows_(stream.tokens(), length) {
  KINTSUGI_CHECK(windows_.count > 0, "a stream of {} tokens has no window of {}", stream.tokens(),
                 length + 1);
}

void WindowSamples::locate(std::int64_t sample, std::uint64_t key,
                           std::vector<TokenRange>& ranges) const {
  const auto start = static_cast<std::int64_t>(key % static_cast<std::uint64_t>(windows_.slack));
  stream_->locate(start + sample * length_, length_ + 1, ranges);
}

void WindowSamples::add_to(StreamHash& hash) const { add_parts(*stream_, hash); }

// The content includes the fingerprint of the stream.
void PackedSamples::add_to(StreamHash& hash) const {
  const std::uint64_t content = index_.content();
  hash.update(&content, sizeof(content));
}

ShuffledOrder::ShuffledOrder(std::vector<std::unique_ptr<SourceSamples>> sources,
                             const std::vector<std::uint64_t>& weights, std::int64_t length,
                             std::uint64_t seed)
    : sources_(std::move(sources)),
      weights_(weights),
      blend_(weights),
      length_(length),
      seed_(seed) {
  KINTSUGI_CHECK(sources_.size() == weights.size(), "{} sources, {} weights", sources_.size(),
                 weights.size());
}

SampleOrder::Origin ShuffledOrder::locate(std::int64_t k, std::vector<TokenRange>& ranges) const {
  const auto [source, index] = blend_(k);
  const SourceSamples& samples = *sources_[source];
  const std::int64_t count = samples.count(), epoch = index / count;
  const std::uint64_t key =
      derive_key(derive_key(seed_, 0xDA7A, source), static_cast<std::uint64_t>(epoch));
  const Permutation permutation(static_cast<std::uint64_t>(count), key);
  samples.locate(static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(index % count))),
                 key, ranges);
  return {source, epoch};
}

std::uint64_t ShuffledOrder::unseeded_fingerprint() const {
  StreamHash hash;
  hash.update(&length_, sizeof(length_));
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    hash.update(&weights_[i], sizeof(weights_[i]));
    sources_[i]->add_to(hash);
  }
  return hash.digest();
}

ValidationSet::ValidationSet(std::string name, const TokenStream& stream, std::int64_t length,
                             std::int64_t count)
    : name_(std::move(name)),
      stream_(&stream),
      length_(length),
      available_(std::max<std::int64_t>(stream.tokens() - 1, 0) / length),
      count_(count > 0 ? std::min(count, available_) : available_) {}

ValidationSet::ValidationSet(std::string name, const TokenStream& stream, PackingIndex packed,
                             std::int64_t count)
    : name_(std::move(name)),
      stream_(&stream),
      packed_(std::move(packed)),
      length_(0),
      available_(packed_->summary().samples),
      count_(count > 0 ? std::min(count, available_) : available_) {}

void ValidationSet::locate(std::int64_t i, std::vector<TokenRange>& ranges) const {
  const std::int64_t sample = i * available_ / count_;
  if (packed_) return packed_->locate(sample, *stream_, ranges);
  stream_->locate(sample * length_, length_ + 1, ranges);
}

}  // namespace kintsugi
