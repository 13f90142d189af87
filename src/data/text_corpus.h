#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"

namespace kintsugi {

// A text file whose bytes are its tokens. The last valid_fraction of it is held out.
class TextCorpus {
 public:
  TextCorpus(const std::filesystem::path& path, double valid_fraction);

  std::span<const std::uint8_t> train() const { return bytes().first(train_bytes_); }
  std::span<const std::uint8_t> valid() const { return bytes().subspan(train_bytes_); }
  // Throws UserError, with the place, if a byte is no token of a vocabulary of this size.
  void check_vocabulary(std::int64_t vocab_size) const;

 private:
  std::span<const std::uint8_t> bytes() const;

  std::string name_;
  MappedFile file_;
  std::size_t train_bytes_ = 0;
};

// Where training and validation samples come from. Sample k of a run is a pure function of the seed
// and k: any position is reached at once, no matter how the run is laid out or how often it was
// interrupted.
//
// An epoch of a corpus is its windows of length + 1 tokens (neighbours share one), in a keyed
// random order, and starts at another offset each time. Several corpora are interleaved by weight
// in a fixed pattern.
class Sampler {
 public:
  struct Source {
    std::span<const std::uint8_t> tokens;
    double weight = 1.0;
    std::string name;
  };
  Sampler(std::vector<Source> sources, std::int64_t length, std::uint64_t seed);

  // What the order depends on beside the seed: lengths, weights, and the ends of each text.
  std::string fingerprint() const;

  // Writes `length` ids and the ids that follow each of them.
  void training_sample(std::int64_t k, std::int32_t* ids, std::int32_t* targets) const;

 private:
  struct Stream {
    Source source;
    std::uint64_t windows = 0;
    std::int64_t slack = 0;            // an epoch starts at 0 … slack - 1
    std::int64_t per_pattern = 0;      // samples of this source in one pattern
    std::vector<std::int32_t> before;  // of those, how many come before each place of the pattern
  };
  std::int64_t length_;
  std::uint64_t seed_;
  std::vector<Stream> streams_;
  std::vector<std::int16_t> pattern_;  // source at each place
};

// Samples for validation: `count` windows spread evenly over the held-out tokens (all of them when
// there are fewer).
class ValidationSet {
 public:
  ValidationSet(std::vector<std::span<const std::uint8_t>> parts, std::int64_t length,
                std::int64_t count);
  std::int64_t size() const { return static_cast<std::int64_t>(starts_.size()); }
  void sample(std::int64_t i, std::int32_t* ids, std::int32_t* targets) const;

 private:
  std::int64_t length_;
  std::vector<const std::uint8_t*> starts_;
};

}  // namespace kintsugi
