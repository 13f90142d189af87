#include "data/text_corpus.h"

#include <algorithm>

#include "core/error.h"
#include "core/hash.h"
#include "core/permutation.h"

namespace kintsugi {
namespace {

constexpr std::size_t kPattern = 4096;  // weights are honoured to 1 / 4096

void copy_window(const std::uint8_t* from, std::int64_t length, std::int32_t* ids,
                 std::int32_t* targets) {
  for (std::int64_t i = 0; i < length; ++i) {
    ids[i] = from[i];
    targets[i] = from[i + 1];
  }
}

}  // namespace

TextCorpus::TextCorpus(const std::filesystem::path& path, double valid_fraction)
    : name_(path.string()), file_(path) {
  const std::size_t size = file_.bytes().size();
  if (size == 0) user_error("the corpus {} is empty", name_);
  train_bytes_ = size - static_cast<std::size_t>(static_cast<double>(size) * valid_fraction);
}

std::span<const std::uint8_t> TextCorpus::bytes() const {
  return {reinterpret_cast<const std::uint8_t*>(file_.bytes().data()), file_.bytes().size()};
}

void TextCorpus::check_vocabulary(std::int64_t vocab_size) const {
  if (vocab_size >= 256) return;
  const auto all = bytes();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](std::uint8_t b) { return b >= vocab_size; });
  if (found == all.end()) return;
  user_error(
      "{} holds token id {} at byte {}, but model.vocab_size is {}: byte text needs a vocabulary "
      "of 256",
      name_, *found, found - all.begin(), vocab_size);
}

Sampler::Sampler(std::vector<Source> sources, std::int64_t length, std::uint64_t seed)
    : length_(length), seed_(seed) {
  double total_weight = 0;
  for (Source& source : sources) {
    const auto tokens = static_cast<std::int64_t>(source.tokens.size());
    if (tokens < length + 1)
      user_error(
          "the training part of {} has {} tokens, one sample needs {}: take a larger corpus, a "
          "shorter data.sequence_length or a smaller data.valid_fraction",
          source.name, tokens, length + 1);
    total_weight += source.weight;
    Stream stream;
    stream.windows = static_cast<std::uint64_t>((tokens - 1) / length);
    stream.slack = (tokens - 1) % length + 1;
    if (stream.windows > 1) {  // one window fewer lets an epoch start anywhere
      stream.windows -= 1;
      stream.slack += length;
    }
    stream.source = std::move(source);
    streams_.push_back(std::move(stream));
  }
  // At each place the source that is furthest behind its share.
  for (std::size_t place = 0; place < kPattern; ++place) {
    std::size_t chosen = 0;
    double most_behind = -1e300;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      streams_[i].before.push_back(static_cast<std::int32_t>(streams_[i].per_pattern));
      const double share = streams_[i].source.weight / total_weight;
      const double behind =
          share * static_cast<double>(place + 1) - static_cast<double>(streams_[i].per_pattern);
      if (behind > most_behind) {
        most_behind = behind;
        chosen = i;
      }
    }
    streams_[chosen].per_pattern += 1;
    pattern_.push_back(static_cast<std::int16_t>(chosen));
  }
}

std::string Sampler::fingerprint() const {
  constexpr std::size_t kEnds = 1 << 20;  // bytes read from each end: enough to tell texts apart
  StreamHash hash;
  hash.update(&length_, sizeof(length_));
  for (const Stream& stream : streams_) {
    const auto tokens = stream.source.tokens;
    const std::size_t size = tokens.size(), ends = std::min(size, kEnds);
    hash.update(&size, sizeof(size));
    hash.update(&stream.source.weight, sizeof(stream.source.weight));
    hash.update(tokens.data(), ends);
    hash.update(tokens.data() + size - ends, ends);
  }
  return hex64(hash.digest());
}

void Sampler::training_sample(std::int64_t k, std::int32_t* ids, std::int32_t* targets) const {
  const std::size_t place = static_cast<std::size_t>(k) % kPattern;
  const auto index = static_cast<std::size_t>(pattern_[place]);
  const Stream& stream = streams_[index];
  const auto n = static_cast<std::uint64_t>(
      k / static_cast<std::int64_t>(kPattern) * stream.per_pattern + stream.before[place]);
  const std::uint64_t epoch = n / stream.windows;
  const std::uint64_t key = derive_key(derive_key(seed_, 0xDA7A, index), epoch);
  const std::uint64_t window = Permutation(stream.windows, key)(n % stream.windows);
  const std::uint64_t start = key % static_cast<std::uint64_t>(stream.slack);
  copy_window(stream.source.tokens.data() + start + window * static_cast<std::uint64_t>(length_),
              length_, ids, targets);
}

ValidationSet::ValidationSet(std::vector<std::span<const std::uint8_t>> parts, std::int64_t length,
                             std::int64_t count)
    : length_(length) {
  std::vector<const std::uint8_t*> all;
  for (const auto& part : parts)
    for (std::int64_t start = 0; start + length < static_cast<std::int64_t>(part.size());
         start += length)
      all.push_back(part.data() + start);
  const auto available = static_cast<std::int64_t>(all.size());
  if (count <= 0 || count > available) count = available;
  for (std::int64_t i = 0; i < count; ++i)
    starts_.push_back(all[static_cast<std::size_t>(i * available / count)]);
}

void ValidationSet::sample(std::int64_t i, std::int32_t* ids, std::int32_t* targets) const {
  copy_window(starts_[static_cast<std::size_t>(i)], length_, ids, targets);
}

}  // namespace kintsugi
