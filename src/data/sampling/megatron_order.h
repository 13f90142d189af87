#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/sampling/megatron_blend.h"
#include "data/sampling/sample_order.h"

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
// For `samples` samples of `length` tokens from sequences of these lengths; none: one epoch.
MegatronIndex build_megatron_index(std::span<const std::int32_t> lengths,
                                   std::optional<std::int64_t> samples, std::int64_t length,
                                   std::uint32_t seed);

// 0 … count - 1 in the order that numpy's RandomState(seed).shuffle gives them.
std::vector<std::int64_t> megatron_permutation(std::int64_t count, std::uint32_t seed);

// Megatron asks its sources for other numbers of samples in each of these cases, and so shuffles
// them otherwise: one source without a weight gives what the run needs; sources with weights, one
// or several, a little more than their shares; several without weights one epoch each, in
// proportion to its samples.
class MegatronOrder final : public SampleOrder {
 public:
  struct Source {
    const TokenShard* shard;
    std::int64_t first = 0, count = 0;  // sequences
    // Any scale. Where others have one, none counts as 1.
    std::optional<double> weight;
    std::string name;
  };
  MegatronOrder(const std::vector<Source>& sources, std::int64_t samples, std::int64_t length,
                std::uint64_t seed, MegatronVersion version = MegatronVersion::Newest);

  const std::vector<double>& shares() const { return shares_; }  // of each source, in all 1

  Origin locate(std::int64_t k, std::vector<TokenPiece>& pieces) const override;
  std::uint64_t fingerprint() const override;

 private:
  struct Indexed {
    Source source;
    std::optional<std::int64_t> asked;  // samples; none: those of one epoch
    MegatronIndex index;
  };
  void add(const Source& source, std::optional<std::int64_t> asked, std::uint32_t seed);
  void take_epochs_as_weights();
  void blend_sources();

  std::vector<Indexed> sources_;
  MegatronBlend blend_;  // empty: there is one source
  std::vector<double> shares_;
  std::int64_t samples_, length_;
  bool weighted_;
  MegatronVersion version_;
};

}  // namespace kintsugi
