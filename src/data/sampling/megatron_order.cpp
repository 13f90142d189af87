#include "data/sampling/megatron_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/hash.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// A random number in [0, most], drawn as by numpy's legacy generator.
std::uint64_t draw(std::mt19937& random, std::uint64_t most) {
  std::uint64_t mask = most;
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  while (true) {
    std::uint64_t value = random();
    if (most > std::numeric_limits<std::uint32_t>::max()) value = value << 32 | random();
    if (const std::uint64_t masked = value & mask; masked <= most) return masked;
  }
}

template <class T>
void shuffle(std::span<T> values, std::mt19937& random) {
  for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[draw(random, i)]);
}

// Sequences 0 … count - 1 of each epoch, shuffled; the last epoch separately if the index says so.
std::vector<std::int32_t> document_index(std::int64_t count, const MegatronIndex& index,
                                         std::mt19937& random) {
  const auto per_epoch = static_cast<std::size_t>(count);
  const auto epochs = static_cast<std::size_t>(index.epochs);
  std::vector<std::int32_t> documents(per_epoch * epochs);
  for (std::size_t i = 0; i < documents.size(); ++i)
    documents[i] = static_cast<std::int32_t>(i % per_epoch);
  const std::size_t shuffled_together =
      per_epoch * (index.separate_last_epoch ? epochs - 1 : epochs);
  shuffle(std::span(documents).first(shuffled_together), random);
  if (index.separate_last_epoch) shuffle(std::span(documents).subspan(shuffled_together), random);
  return documents;
}

// A sample has length + 1 tokens; the next one starts at its last token.
void build_sample_index(MegatronIndex& index, std::span<const std::int32_t> lengths,
                        std::int64_t samples, std::int64_t length) {
  std::size_t position = 0;
  std::int64_t offset = 0;
  const auto append = [&] {
    index.position.push_back(static_cast<std::int64_t>(position));
    index.offset.push_back(static_cast<std::int32_t>(offset));
  };
  index.position.reserve(static_cast<std::size_t>(samples) + 1);
  index.offset.reserve(static_cast<std::size_t>(samples) + 1);
  append();
  for (std::int64_t i = 0; i < samples; ++i) {
    for (std::int64_t remaining = length + 1; remaining > 0;) {
      const std::int64_t whole = lengths[static_cast<std::size_t>(index.documents[position])];
      const std::int64_t left = whole - offset;
      if (left >= remaining) {
        offset += remaining - 1;
        break;
      }
      remaining -= left;
      position += 1;
      offset = 0;
    }
    append();
  }
}

}  // namespace

std::array<double, 3> parse_megatron_split(const std::string& text) {
  std::array<double, 3> proportions{};
  std::size_t count = 0, begin = 0;
  const auto fail = [&] [[noreturn]] {
    user_error(
        "'{}' is not a split: give up to three numbers for training, validation and test, like "
        "949,50,1",
        text);
  };
  while (begin <= text.size()) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    if (count == proportions.size()) fail();
    try {
      proportions[count] = parse_real(text.substr(begin, comma - begin));
    } catch (const UserError&) {
      fail();
    }
    if (!(proportions[count] >= 0) || !std::isfinite(proportions[count])) fail();
    count += 1;
    begin = comma + 1;
  }
  if (!(proportions[0] > 0)) fail();
  return proportions;
}

std::array<std::int64_t, 4> megatron_split(const std::array<double, 3>& proportions,
                                           std::int64_t sequences) {
  const double total = proportions[0] + proportions[1] + proportions[2];
  std::array<std::int64_t, 4> ends{};
  double sum = 0;
  for (std::size_t i = 0; i < proportions.size(); ++i) {
    sum += proportions[i] / total;
    ends[i + 1] = std::min(
        sequences, static_cast<std::int64_t>(std::nearbyint(sum * static_cast<double>(sequences))));
  }
  return ends;
}

std::vector<std::int64_t> megatron_permutation(std::int64_t count, std::uint32_t seed) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  std::mt19937 random(seed);
  shuffle(std::span(values), random);
  return values;
}

MegatronIndex build_megatron_index(std::span<const std::int32_t> lengths,
                                   std::optional<std::int64_t> samples, std::int64_t length,
                                   std::uint32_t seed) {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  KINTSUGI_CHECK(tokens > 0, "an index over no tokens");
  MegatronIndex index;
  index.epochs = samples ? std::max<std::int64_t>(1, (*samples * length + tokens) / tokens) : 1;
  const std::int64_t all = (index.epochs * tokens - 1) / length;
  std::int64_t shuffled_first = all;
  if (index.epochs > 1) {
    const std::int64_t without_last = ((index.epochs - 1) * tokens - 1) / length;
    const std::int64_t per_epoch = (tokens - 1) / length;
    index.separate_last_epoch =
        *samples - without_last < static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
    if (index.separate_last_epoch) shuffled_first = without_last;
  }
  std::mt19937 random(seed);  // one generator for the documents, then the samples
  index.documents = document_index(static_cast<std::int64_t>(lengths.size()), index, random);
  build_sample_index(index, lengths, all, length);
  index.shuffle.resize(static_cast<std::size_t>(all));
  std::iota(index.shuffle.begin(), index.shuffle.end(), 0);
  const auto first = static_cast<std::size_t>(shuffled_first);
  shuffle(std::span(index.shuffle).first(first), random);
  if (shuffled_first < all) shuffle(std::span(index.shuffle).subspan(first), random);
  return index;
}

MegatronOrder::MegatronOrder(const std::vector<Source>& sources, std::int64_t samples,
                             std::int64_t length, std::uint64_t seed, MegatronVersion version)
    : samples_(samples), length_(length), seed_(seed), version_(version) {
  if (seed > std::numeric_limits<std::uint32_t>::max())
    user_error("run.seed is {}, but Megatron's generator takes 32 bits: use a smaller seed", seed);
  if (sources.size() >= static_cast<std::size_t>(std::numeric_limits<std::int16_t>::max()))
    user_error("data.train has {} sources, but Megatron blends fewer than {}: merge some of them",
               sources.size(), std::numeric_limits<std::int16_t>::max());
  weighted_ = std::any_of(sources.begin(), sources.end(),
                          [](const Source& source) { return source.weight.has_value(); });
  std::vector<double> weights;
  for (const Source& source : sources) weights.push_back(source.weight.value_or(1.0));
  shares_ = megatron_normalized(weights);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::optional<std::int64_t> requested;
    if (weighted_)
      requested = megatron_request(samples, shares_[i], version);
    else if (sources.size() == 1)
      requested = samples;
    add(sources[i], requested, static_cast<std::uint32_t>(seed));
  }
  if (sources.size() == 1) return;
  if (!weighted_) weight_by_epoch_samples();
  shares_ = megatron_normalized(shares_);
  blend_sources();
}

void MegatronOrder::add(const Source& source, std::optional<std::int64_t> requested,
                        std::uint32_t seed) {
  std::vector<std::int32_t> lengths;
  lengths.reserve(static_cast<std::size_t>(source.count));
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < source.count; ++i) {
    lengths.push_back(static_cast<std::int32_t>(source.shard->sequence_length(source.first + i)));
    tokens += lengths.back();
  }
  if (tokens < 2)
    user_error(
        "the training split of {} has {} tokens, but Megatron's order needs two: change data.split",
        source.name, tokens);
  sources_.push_back({source, requested, build_megatron_index(lengths, requested, length_, seed)});
}

void MegatronOrder::weight_by_epoch_samples() {
  std::int64_t all = 0;
  shares_.clear();
  for (const auto& [source, requested, index] : sources_) {
    const auto samples = static_cast<std::int64_t>(index.shuffle.size());
    if (samples == 0)
      user_error(
          "the training split of {} is shorter than one sample of {} tokens, which Megatron reads "
          "only if the sources have weights: give every source a weight, or remove this one",
          source.name, length_ + 1);
    all += samples;
    shares_.push_back(static_cast<double>(samples));
  }
  if (all < samples_)
    user_error(
        "the run reads {} samples, but one epoch of its sources has {}, and without weights "
        "Megatron reads no more than one: give every source a weight, or shorten the run",
        samples_, all);
}

void MegatronOrder::blend_sources() {
  blend_ = build_megatron_blend(shares_, samples_);
  std::vector<std::int64_t> counts(sources_.size(), 0);
  for (const std::int16_t source : blend_.source) ++counts[static_cast<std::size_t>(source)];
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (static_cast<std::size_t>(counts[i]) > sources_[i].index.shuffle.size())
      user_error(
          "the blend takes {} samples of {}, but Megatron prepares only {} and rejects such a run: "
          "change the weights or train.steps slightly",
          counts[i], sources_[i].source.name, sources_[i].index.shuffle.size());
}

SampleOrder::Origin MegatronOrder::locate(std::int64_t k, std::vector<TokenRange>& ranges) const {
  KINTSUGI_CHECK(k >= 0 && k < samples_, "sample {} of a run of {}", k, samples_);
  const auto entry = static_cast<std::size_t>(k);
  const std::size_t chosen =
      blend_.source.empty() ? 0 : static_cast<std::size_t>(blend_.source[entry]);
  const auto& [source, requested, index] = sources_[chosen];
  const auto number =
      blend_.number.empty() ? entry : static_cast<std::size_t>(blend_.number[entry]);
  KINTSUGI_CHECK(number < index.shuffle.size(), "sample {} of {}", number, index.shuffle.size());
  const auto sample = static_cast<std::size_t>(index.shuffle[number]);
  const std::int64_t first = index.position[sample], last = index.position[sample + 1];
  for (std::int64_t position = first; position <= last; ++position) {
    const std::int64_t sequence =
        source.first + index.documents[static_cast<std::size_t>(position)];
    const std::int64_t from = position == first ? index.offset[sample] : 0;
    const std::int64_t to =
        position == last ? index.offset[sample + 1] + 1 : source.shard->sequence_length(sequence);
    if (to > from)
      ranges.push_back({source.shard, source.shard->sequence_begin(sequence) + from, to - from});
  }
  return {chosen, first / source.count};
}

std::uint64_t MegatronOrder::unseeded_fingerprint() const {
  StreamHash hash;
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  add(length_);
  add(samples_);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i].source;
    add(source.shard->fingerprint());
    add(source.first);
    add(source.count);
    add(shares_[i]);
  }
  // The order of a single source without a weight has never changed, the other orders have.
  if (sources_.size() == 1 && !weighted_) return hash.digest();
  add(std::uint64_t{2});  // version of these rules
  add(version_);
  add(weighted_);
  for (const auto& [source, requested, index] : sources_) add(requested.value_or(-1));
  return hash.digest();
}

}  // namespace kintsugi
