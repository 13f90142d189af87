#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/sampling/blend.h"
#include "data/sampling/token_stream.h"

namespace kintsugi {

// Maps sample k of a run to its tokens. A pure function of the data, the seed and k: random access,
// independent of the parallel layout and of interruptions.
class SampleOrder {
 public:
  virtual ~SampleOrder() = default;

  struct Origin {
    std::size_t source = 0;
    std::int64_t epoch = 0;  // of that source, from 0
  };
  // Appends the ranges that hold the sample's length + 1 tokens.
  virtual Origin locate(std::int64_t k, std::vector<TokenRange>& ranges) const = 0;

  // A hash of everything that determines the order, except the seed.
  virtual std::uint64_t fingerprint() const = 0;
};

// Splits a stream into samples: windows of length + 1 tokens; adjacent windows share one token. An
// epoch has one window fewer than would fit, so that each epoch can start at another offset.
struct Windows {
  Windows(std::int64_t tokens, std::int64_t length);
  std::int64_t count = 0;  // windows in an epoch; 0: the stream is too short
  std::int64_t slack = 0;  // an epoch starts at token 0 … slack - 1
};

// The default order: the windows of each epoch in a keyed random permutation, a new one per epoch;
// sources are interleaved by a Blend. No arrays are stored.
class ShuffledOrder final : public SampleOrder {
 public:
  // `weights` come from blend_weights(). The streams must outlive the order.
  ShuffledOrder(std::vector<const TokenStream*> streams, const std::vector<std::uint64_t>& weights,
                std::int64_t length, std::uint64_t seed);

  Origin locate(std::int64_t k, std::vector<TokenRange>& ranges) const override;
  std::uint64_t fingerprint() const override;

 private:
  struct Source {
    const TokenStream* stream;
    Windows windows;
  };
  std::vector<Source> sources_;
  std::vector<std::uint64_t> weights_;
  Blend blend_;
  std::int64_t length_;
  std::uint64_t seed_;
};

}  // namespace kintsugi
