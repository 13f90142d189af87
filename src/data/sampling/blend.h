#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kintsugi {

// The order in which the samples of several sources are interleaved, in closed form: nothing is
// stored per sample and any place is found in O(log sources).
//
// The sources are halved again and again. Of the first j samples that reach such a group,
// round(j * left / total) go to its left half: the most even interleave of two, exact in integers.
// The count of a source stays within half a sample per halving of its share, and wherever
// k * weight / total is whole for all of them, the counts are exactly that.
class Blend {
 public:
  explicit Blend(const std::vector<std::uint64_t>& weights);

  struct Turn {
    std::size_t source = 0;
    std::int64_t number = 0;  // how many samples of that source came before
  };
  Turn operator()(std::int64_t k) const;

 private:
  std::vector<std::uint64_t> sums_;  // of the weights before each source
};

// Weights in proportion to size^(1 / temperature). Small temperatures are beyond the range of a
// number unless the largest size is the unit.
std::vector<double> temperature_weights(const std::vector<double>& sizes, double temperature);

struct BlendSource {
  double weight = 1;       // any scale
  std::int64_t epoch = 0;  // its samples in one epoch
  double max_epochs = 0;   // 0: no limit
};

// Whole weights for a run of `samples` samples of `length` tokens. Where a source would be repeated
// beyond its max_epochs, it gets exactly those and the others share the rest in proportion; then,
// or when it comes close, the weights are the counts of this very run. UserError when all of them
// together do not suffice.
std::vector<std::uint64_t> blend_weights(const std::vector<BlendSource>& sources,
                                         std::int64_t samples, std::int64_t length);

}  // namespace kintsugi
