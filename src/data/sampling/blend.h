#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

}  // namespace kintsugi
