#include "data/sampling/sample_order.h"

#include "core/error.h"
#include "core/hash.h"
#include "core/permutation.h"

namespace kintsugi {

Windows::Windows(std::int64_t tokens, std::int64_t length) {
  if (tokens <= length) return;
  count = (tokens - 1) / length;
  slack = (tokens - 1) % length + 1;
  if (count > 1) {
    count -= 1;
    slack += length;
  }
}

ShuffledOrder::ShuffledOrder(std::vector<const TokenStream*> streams,
                             const std::vector<std::uint64_t>& weights, std::int64_t length,
                             std::uint64_t seed)
    : weights_(weights), blend_(weights), length_(length), seed_(seed) {
  KINTSUGI_CHECK(streams.size() == weights.size(), "{} streams, {} weights", streams.size(),
                 weights.size());
  for (const TokenStream* stream : streams) {
    sources_.push_back({stream, Windows(stream->tokens(), length)});
    KINTSUGI_CHECK(sources_.back().windows.count > 0, "a stream of {} tokens has no window of {}",
                   stream->tokens(), length + 1);
  }
}

SampleOrder::Origin ShuffledOrder::locate(std::int64_t k, std::vector<TokenRange>& ranges) const {
  const auto [source, index] = blend_(k);
  const auto& [stream, windows] = sources_[source];
  const std::int64_t epoch = index / windows.count;
  const std::uint64_t key =
      derive_key(derive_key(seed_, 0xDA7A, source), static_cast<std::uint64_t>(epoch));
  const Permutation permutation(static_cast<std::uint64_t>(windows.count), key);
  const auto window =
      static_cast<std::int64_t>(permutation(static_cast<std::uint64_t>(index % windows.count)));
  const auto start = static_cast<std::int64_t>(key % static_cast<std::uint64_t>(windows.slack));
  stream->locate(start + window * length_, length_ + 1, ranges);
  return {source, epoch};
}

std::uint64_t ShuffledOrder::fingerprint() const {
  StreamHash hash;
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  add(length_);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    add(weights_[i]);
    for (const TokenRange& range : sources_[i].stream->parts()) {
      add(range.shard->fingerprint());
      add(range.first);
      add(range.count);
    }
  }
  return hash.digest();
}

}  // namespace kintsugi
