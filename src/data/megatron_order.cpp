#include "data/megatron_order.h"

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

// A number in [0, most], as numpy's legacy generator draws it.
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

// Sequences 0 … count - 1 of each epoch; the last one by itself when it is apart.
std::vector<std::int32_t> document_index(std::int64_t count, const MegatronIndex& index,
                                         std::mt19937& random) {
  const auto per_epoch = static_cast<std::size_t>(count);
  const auto epochs = static_cast<std::size_t>(index.epochs);
  std::vector<std::int32_t> documents(per_epoch * epochs);
  for (std::size_t i = 0; i < documents.size(); ++i)
    documents[i] = static_cast<std::int32_t>(i % per_epoch);
  const std::size_t together = per_epoch * (index.last_epoch_apart ? epochs - 1 : epochs);
  shuffle(std::span(documents).first(together), random);
  if (index.last_epoch_apart) shuffle(std::span(documents).subspan(together), random);
  return documents;
}

// Walks length + 1 tokens per sample and steps back by one.
void build_sample_index(MegatronIndex& index, std::span<const std::int32_t> lengths,
                        std::int64_t samples, std::int64_t length) {
  std::size_t position = 0;
  std::int64_t offset = 0;
  const auto note = [&] {
    index.position.push_back(static_cast<std::int64_t>(position));
    index.offset.push_back(static_cast<std::int32_t>(offset));
  };
  index.position.reserve(static_cast<std::size_t>(samples) + 1);
  index.offset.reserve(static_cast<std::size_t>(samples) + 1);
  note();
  for (std::int64_t i = 0; i < samples; ++i) {
    for (std::int64_t wanted = length + 1; wanted > 0;) {
      const std::int64_t here = lengths[static_cast<std::size_t>(index.documents[position])];
      const std::int64_t left = here - offset;
      if (left >= wanted) {
        offset += wanted - 1;
        break;
      }
      wanted -= left;
      position += 1;
      offset = 0;
    }
    note();
  }
}

}  // namespace

std::array<double, 3> parse_megatron_split(const std::string& text) {
  std::array<double, 3> parts{};
  std::size_t count = 0, begin = 0;
  const auto complain = [&] [[noreturn]] {
    user_error(
        "'{}' is not a split: up to three numbers for training, validation and test, like "
        "949,50,1",
        text);
  };
  while (begin <= text.size()) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    if (count == parts.size()) complain();
    try {
      parts[count] = parse_real(text.substr(begin, comma - begin));
    } catch (const UserError&) {
      complain();
    }
    if (!(parts[count] >= 0) || !std::isfinite(parts[count])) complain();
    count += 1;
    begin = comma + 1;
  }
  if (!(parts[0] > 0)) complain();
  return parts;
}

std::array<std::int64_t, 4> megatron_split(const std::array<double, 3>& parts,
                                           std::int64_t sequences) {
  const double total = parts[0] + parts[1] + parts[2];
  std::array<std::int64_t, 4> ends{};
  double sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sum += parts[i] / total;
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

MegatronIndex build_megatron_index(std::span<const std::int32_t> lengths, std::int64_t samples,
                                   std::int64_t length, std::uint32_t seed) {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  KINTSUGI_CHECK(tokens > 0, "an index over no tokens");
  MegatronIndex index;
  index.epochs = std::max<std::int64_t>(1, (samples * length + tokens) / tokens);
  const std::int64_t all = (index.epochs * tokens - 1) / length;
  std::int64_t shuffled_first = all;
  if (index.epochs > 1) {
    const std::int64_t without_last = ((index.epochs - 1) * tokens - 1) / length;
    const std::int64_t per_epoch = (tokens - 1) / length;
    index.last_epoch_apart =
        samples - without_last < static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
    if (index.last_epoch_apart) shuffled_first = without_last;
  }
  std::mt19937 random(seed);  // one generator for documents, then samples
  index.documents = document_index(static_cast<std::int64_t>(lengths.size()), index, random);
  build_sample_index(index, lengths, all, length);
  index.shuffle.resize(static_cast<std::size_t>(all));
  std::iota(index.shuffle.begin(), index.shuffle.end(), 0);
  const auto first = static_cast<std::size_t>(shuffled_first);
  shuffle(std::span(index.shuffle).first(first), random);
  if (shuffled_first < all) shuffle(std::span(index.shuffle).subspan(first), random);
  return index;
}

MegatronBlend build_megatron_blend(const std::vector<double>& weights, std::int64_t samples) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  MegatronBlend blend;
  blend.source.reserve(static_cast<std::size_t>(samples));
  blend.number.reserve(static_cast<std::size_t>(samples));
  std::vector<std::int64_t> counts(weights.size(), 0);
  for (std::int64_t k = 0; k < samples; ++k) {
    const auto place = static_cast<double>(std::max<std::int64_t>(k, 1));
    std::size_t chosen = 0;
    double most_behind = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double behind = weights[i] / total * place - static_cast<double>(counts[i]);
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

MegatronOrder::MegatronOrder(const std::vector<Source>& sources, std::int64_t samples,
                             std::int64_t length, std::uint64_t seed)
    : samples_(samples), length_(length) {
  if (seed > std::numeric_limits<std::uint32_t>::max())
    user_error("run.seed is {}, but Megatron's generator takes 32 bits: use a smaller one", seed);
  double total = 0;
  std::vector<double> weights;
  for (const Source& source : sources) {
    weights.push_back(source.weight);
    total += source.weight;
  }
  for (const Source& source : sources) {
    // A blend asks each source for a little more than its share.
    std::int64_t wanted = samples;
    if (sources.size() > 1)
      wanted = static_cast<std::int64_t>(std::ceil(
          std::ceil(static_cast<double>(samples) * (source.weight / total)) * (1 + 0.005)));
    std::vector<std::int32_t> lengths;
    lengths.reserve(static_cast<std::size_t>(source.count));
    std::int64_t tokens = 0;
    for (std::int64_t i = 0; i < source.count; ++i) {
      lengths.push_back(static_cast<std::int32_t>(source.shard->sequence_length(source.first + i)));
      tokens += lengths.back();
    }
    if (tokens < 1)
      user_error("the training part of {} is empty: take another data.split", source.name);
    sources_.push_back(
        {source, build_megatron_index(lengths, wanted, length, static_cast<std::uint32_t>(seed))});
  }
  if (sources.size() > 1) blend_ = build_megatron_blend(weights, samples);
}

SampleOrder::Origin MegatronOrder::locate(std::int64_t k, std::vector<TokenPiece>& pieces) const {
  KINTSUGI_CHECK(k >= 0 && k < samples_, "sample {} of a run of {}", k, samples_);
  const auto place = static_cast<std::size_t>(k);
  const std::size_t chosen =
      blend_.source.empty() ? 0 : static_cast<std::size_t>(blend_.source[place]);
  const auto& [source, index] = sources_[chosen];
  const auto number =
      blend_.number.empty() ? place : static_cast<std::size_t>(blend_.number[place]);
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
      pieces.push_back({source.shard, source.shard->sequence_begin(sequence) + from, to - from});
  }
  return {chosen, first / source.count};
}

std::uint64_t MegatronOrder::fingerprint() const {
  StreamHash hash;
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  add(length_);
  add(samples_);
  for (const auto& [source, index] : sources_) {
    add(source.shard->fingerprint());
    add(source.first);
    add(source.count);
    add(source.weight);
  }
  return hash.digest();
}

}  // namespace kintsugi
