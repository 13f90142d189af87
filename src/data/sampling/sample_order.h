#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/sampling/blend.h"
#include "data/sampling/token_stream.h"

namespace kintsugi {

// Which tokens sample k of a run is. A pure function of the data, the seed and k: any position is
// reached at once, no matter how the run is laid out or how often it was interrupted.
class SampleOrder {
 public:
  virtual ~SampleOrder() = default;

  struct Origin {
    std::size_t source = 0;
    std::int64_t epoch = 0;  // of that source, from 0
  };
  // Appends the places of the sample's length + 1 tokens.
  virtual Origin locate(std::int64_t k, std::vector<TokenPiece>& pieces) const = 0;

  // Of all that the order depends on beside the seed.
  virtual std::uint64_t fingerprint() const = 0;
};

// How a stream is cut into samples: windows of length + 1 tokens, neighbours share one. An epoch
// has one window fewer than would fit, so that it can start at another offset each time.
struct Windows {
  Windows(std::int64_t tokens, std::int64_t length);
  std::int64_t count = 0;  // in an epoch; 0: the stream is too short for one
  std::int64_t slack = 0;  // an epoch starts at 0 … slack - 1
};

// Our own order: the windows of an epoch in a keyed random order, another one in every epoch, and
// the sources interleaved by a Blend. Nothing is stored.
class ShuffledOrder final : public SampleOrder {
 public:
  // `weights` as blend_weights() gives them. The streams must outlive the order.
  ShuffledOrder(std::vector<const TokenStream*> streams, const std::vector<std::uint64_t>& weights,
                std::int64_t length, std::uint64_t seed);

  Origin locate(std::int64_t k, std::vector<TokenPiece>& pieces) const override;
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
