#include "data/sampling/sample_order.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {

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

std::vector<std::unique_ptr<SourceSamples>> windows_over(
    const std::vector<const TokenStream*>& streams, std::int64_t length) {
  std::vector<std::unique_ptr<SourceSamples>> sources;
  for (const TokenStream* stream : streams)
    sources.push_back(std::make_unique<WindowSamples>(*stream, length));
  return sources;
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
