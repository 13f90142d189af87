#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/sample_order.h"

namespace kintsugi {

// Megatron-LM's order of samples (its GPTDataset and BlendedDataset), so that a run can be compared
// with one of its runs, or continue it. Its unit is the sequence of an .idx file, which it calls a
// document. The order is one of shuffled arrays and depends on the length of the run: they are
// built in memory at the start.

// "949,50,1": the parts of the sequences for training, validation and test, in any scale. UserError
// if it is no such list.
std::array<double, 3> parse_megatron_split(const std::string& text);
// Where each part begins and the last one ends among `sequences`.
std::array<std::int64_t, 4> megatron_split(const std::array<double, 3>& parts,
                                           std::int64_t sequences);

struct MegatronIndex {
  std::int64_t epochs = 0;
  bool last_epoch_apart = false;
  std::vector<std::int32_t> documents;  // the sequences of all epochs, shuffled
  std::vector<std::int64_t> position;   // (samples + 1) where a sample begins in `documents`
  std::vector<std::int32_t> offset;     // (samples + 1) and within that sequence
  std::vector<std::int64_t> shuffle;    // (samples)
};
// For `samples` samples of `length` tokens from sequences of these lengths.
MegatronIndex build_megatron_index(std::span<const std::int32_t> lengths, std::int64_t samples,
                                   std::int64_t length, std::uint32_t seed);

// 0 … count - 1 in the order that numpy's RandomState(seed).shuffle gives them.
std::vector<std::int64_t> megatron_permutation(std::int64_t count, std::uint32_t seed);

struct MegatronBlend {
  std::vector<std::int16_t> source;
  std::vector<std::int64_t> number;
};
MegatronBlend build_megatron_blend(const std::vector<double>& weights, std::int64_t samples);

class MegatronOrder final : public SampleOrder {
 public:
  struct Source {
    const TokenShard* shard;
    std::int64_t first = 0, count = 0;  // sequences
    double weight = 1;                  // any scale
    std::string name;
  };
  MegatronOrder(const std::vector<Source>& sources, std::int64_t samples, std::int64_t length,
                std::uint64_t seed);

  Origin locate(std::int64_t k, std::vector<TokenPiece>& pieces) const override;
  std::uint64_t fingerprint() const override;

 private:
  struct Indexed {
    Source source;
    MegatronIndex index;
  };
  std::vector<Indexed> sources_;
  MegatronBlend blend_;  // empty: there is one source
  std::int64_t samples_, length_;
};

}  // namespace kintsugi
