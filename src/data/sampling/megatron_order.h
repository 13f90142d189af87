#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/sampling/megatron_blend.h"
#include "data/sampling/sample_order.h"

namespace kintsugi {

// The sample order of Megatron-LM (GPTDataset and BlendedDataset), to compare a run with a Megatron
// run or to continue one. Its unit is the sequence of an .idx file, which Megatron calls a
// document. The order consists of shuffled index arrays and depends on the length of the run; the
// arrays are built in memory at the start.

// Parses "949,50,1": the proportions of training, validation and test sequences, in any scale.
// UserError if the text is not such a list.
std::array<double, 3> parse_megatron_split(const std::string& text);
// The boundaries of the three splits among `sequences`: split i is [result[i], result[i + 1]).
std::array<std::int64_t, 4> megatron_split(const std::array<double, 3>& proportions,
                                           std::int64_t sequences);

struct MegatronIndex {
  std::int64_t epochs = 0;
  bool separate_last_epoch = false;     // it is shuffled separately
  std::vector<std::int32_t> documents;  // the sequences of all epochs, shuffled
  std::vector<std::int64_t> position;   // (samples + 1) start of a sample: index into `documents`
  std::vector<std::int32_t> offset;     // (samples + 1) and token within that sequence
  std::vector<std::int64_t> shuffle;    // (samples)
};
// Builds the index for `samples` samples of `length` tokens from sequences of these lengths;
// without `samples`, for one epoch.
MegatronIndex build_megatron_index(std::span<const std::int32_t> lengths,
                                   std::optional<std::int64_t> samples, std::int64_t length,
                                   std::uint32_t seed);

// 0 … count - 1, shuffled as by numpy's RandomState(seed).shuffle.
std::vector<std::int64_t> megatron_permutation(std::int64_t count, std::uint32_t seed);

// The number of samples that Megatron requests from a source determines the shuffle. It requests
// what the run needs from a single source without a weight; slightly more than the weighted number
// from sources with weights, one or several; and one epoch from each of several sources without
// weights, which are then weighted by their samples.
class MegatronOrder final : public SampleOrder {
 public:
  struct Source {
    const TokenShard* shard;
    std::int64_t first = 0, count = 0;  // sequences
    // Any scale. If other sources have a weight, a missing one counts as 1.
    std::optional<double> weight;
    std::string name;
  };
  MegatronOrder(const std::vector<Source>& sources, std::int64_t samples, std::int64_t length,
                std::uint64_t seed, MegatronVersion version = MegatronVersion::Newest);

  const std::vector<double>& shares() const { return shares_; }  // of each source; they add up to 1

  Origin locate(std::int64_t k, std::vector<TokenRange>& pieces) const override;
  std::uint64_t seed() const override { return seed_; }
  std::uint64_t unseeded_fingerprint() const override;

 private:
  struct Indexed {
    Source source;
    std::optional<std::int64_t> requested;  // samples; none: one epoch
    MegatronIndex index;
  };
  void add(const Source& source, std::optional<std::int64_t> requested, std::uint32_t seed);
  void weight_by_epoch_samples();
  void blend_sources();

  std::vector<Indexed> sources_;
  MegatronBlend blend_;  // empty if there is one source
  std::vector<double> shares_;
  std::int64_t samples_, length_;
  std::uint64_t seed_;
  bool weighted_;
  MegatronVersion version_;
};

}  // namespace kintsugi
