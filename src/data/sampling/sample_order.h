#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/philox.h"
#include "data/sampling/packing_index.h"
#include "data/sampling/token_stream.h"

namespace kintsugi {

// The order in which the samples of several sources are interleaved, in closed form: nothing is
// stored per sample, and any sample is found in O(log sources).
//
// The sources are split into halves recursively. Of the first j samples of such a group,
// round(j * left / total) come from its left half: the most even interleaving of two, exact in
// integers. The count of a source is within half a sample per level of its exact proportion; where
// k * weight / total is an integer for all sources, the counts are exact.
class Blend {
 public:
  explicit Blend(const std::vector<std::uint64_t>& weights);

  struct Choice {
    std::size_t source = 0;
    std::int64_t index = 0;  // of the sample within that source
  };
  Choice operator()(std::int64_t k) const;

 private:
  std::vector<std::uint64_t> sums_;  // prefix sums of the weights
};

// Weights in proportion to size^(1 / temperature). If that overflows (small temperatures), the
// sizes are divided by the largest one first.
std::vector<double> temperature_weights(const std::vector<double>& sizes, double temperature);

struct BlendSource {
  double weight = 1;       // any scale
  std::int64_t epoch = 0;  // samples in one epoch
  double max_epochs = 0;   // 0: no limit
};

// Integer weights for a run of `samples` samples of `length` tokens. A source that would exceed its
// max_epochs gives exactly that many, and the others give the rest in proportion. In this case, or
// when a source gets close to its limit, the weights are the sample counts of this run. UserError
// if all sources together have too few samples.
std::vector<std::uint64_t> blend_weights(const std::vector<BlendSource>& sources,
                                         std::int64_t samples, std::int64_t length);

// A pseudo-random permutation of [0, n): a keyed Feistel network on the next power of four, applied
// until the result is below n (cycle walking). Constant expected time per index, no storage.
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key) : n_(n), key_(key) {
    while (half_bits_ < 32 && (std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
  }

  std::uint64_t operator()(std::uint64_t index) const {
    do index = scramble(index);
    while (index >= n_);
    return index;
  }

 private:
  std::uint64_t scramble(std::uint64_t x) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = x >> half_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t mixed = left ^ (derive_key(key_, round, right) & mask);
      left = right;
      right = mixed;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t n_, key_;
  int half_bits_ = 1;
};

// Maps sample k of a run to its tokens. A pure function of the data, the seed and k: random access,
// independent of the parallel layout and of interruptions.
class SampleOrder {
 public:
  virtual ~SampleOrder() = default;

  struct Origin {
    std::size_t source = 0;
    std::int64_t epoch = 0;  // of that source, from 0
  };
  // Appends the ranges that hold the sample's tokens: length + 1, or fewer with packed documents.
  virtual Origin locate(std::int64_t k, std::vector<TokenRange>& ranges) const = 0;

  virtual std::uint64_t seed() const = 0;
  // A hash of everything else that determines the order. Runs of earlier versions recorded it as
  // their fingerprint, so it stays as it is.
  virtual std::uint64_t unseeded_fingerprint() const = 0;
  // A hash of everything that determines the order.
  std::uint64_t fingerprint() const;
};

// Splits a stream into samples: windows of length + 1 tokens; adjacent windows share one token. An
// epoch has one window fewer than would fit, so that each epoch can start at another offset.
struct Windows {
  Windows(std::int64_t tokens, std::int64_t length);
  std::int64_t count = 0;  // windows in an epoch; 0: the stream is too short
  std::int64_t slack = 0;  // an epoch starts at token 0 … slack - 1
};

// How the stream of one source is divided into samples; each epoch has all of them.
class SourceSamples {
 public:
  virtual ~SourceSamples() = default;
  virtual std::int64_t count() const = 0;  // in an epoch
  // Appends the ranges of a sample; `key` is random and belongs to the epoch.
  virtual void locate(std::int64_t sample, std::uint64_t key,
                      std::vector<TokenRange>& ranges) const = 0;
  virtual void add_to(StreamHash& hash) const = 0;  // everything that determines the samples
};

class WindowSamples final : public SourceSamples {
 public:
  // The stream must outlive this object and have a window.
  WindowSamples(const TokenStream& stream, std::int64_t length);
  std::int64_t count() const override { return windows_.count; }
  void locate(std::int64_t sample, std::uint64_t key,
              std::vector<TokenRange>& ranges) const override;
  void add_to(StreamHash& hash) const override;

 private:
  const TokenStream* stream_;
  std::int64_t length_;
  Windows windows_;
};

// Documents packed by best fit (packing_index.h): the same samples in every epoch.
class PackedSamples final : public SourceSamples {
 public:
  PackedSamples(const TokenStream& stream, PackingIndex index)
      : stream_(&stream), index_(std::move(index)) {}
  std::int64_t count() const override { return index_.summary().samples; }
  void locate(std::int64_t sample, std::uint64_t /*key*/,
              std::vector<TokenRange>& ranges) const override {
    index_.locate(sample, *stream_, ranges);
  }
  void add_to(StreamHash& hash) const override;

 private:
  const TokenStream* stream_;
  PackingIndex index_;
};

// The default order: the samples of each epoch in a keyed random permutation, a new one per epoch;
// sources are interleaved by a Blend. No arrays are stored.
class ShuffledOrder final : public SampleOrder {
 public:
  // `weights` come from blend_weights().
  ShuffledOrder(std::vector<std::unique_ptr<SourceSamples>> sources,
                const std::vector<std::uint64_t>& weights, std::int64_t length, std::uint64_t seed);

  Origin locate(std::int64_t k, std::vector<TokenRange>& ranges) const override;
  std::uint64_t seed() const override { return seed_; }
  std::uint64_t unseeded_fingerprint() const override;

 private:
  std::vector<std::unique_ptr<SourceSamples>> sources_;
  std::vector<std::uint64_t> weights_;
  Blend blend_;
  std::int64_t length_;
  std::uint64_t seed_;
};

// Validation samples: `count` windows of length + 1 tokens, or packed samples, spread evenly over
// the held-out part of one source (all if there are fewer, or if count is 0). Always the same.
class ValidationSet {
 public:
  ValidationSet(std::string name, const TokenStream& stream, std::int64_t length,
                std::int64_t count);
  ValidationSet(std::string name, const TokenStream& stream, PackingIndex packed,
                std::int64_t count);

  const std::string& name() const { return name_; }
  std::int64_t size() const { return count_; }
  void locate(std::int64_t i, std::vector<TokenRange>& ranges) const;

 private:
  std::string name_;
  const TokenStream* stream_;
  std::optional<PackingIndex> packed_;
  std::int64_t length_, available_, count_;
};

}  // namespace kintsugi
