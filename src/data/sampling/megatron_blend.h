#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kintsugi {

// How Megatron-LM blends sources, to the last bit of its arithmetic: a weight that differs by one
// rounding gives another order. Its runs on x86 are the reference: no fused multiply-add (CMake
// compiles the file so), sums as numpy takes them.

enum class MegatronVersion : std::uint8_t { Newest, V010 };  // V010: 0.4 up to 0.10

// numpy.sum of float64 values: in order below 8, then pairwise.
double numpy_sum(std::span<const double> values);
// Divided by their sum. Megatron does it in its builder and again in its BlendedDataset.
std::vector<double> megatron_normalized(const std::vector<double>& weights);

// The samples that a run of `samples` asks of a source with this normalized weight: a little more
// than its share.
std::int64_t megatron_request(std::int64_t samples, double weight, MegatronVersion version);

struct MegatronBlend {
  std::vector<std::int16_t> source;
  std::vector<std::int64_t> number;  // how many samples of that source came before
};
// The weights as they are, normalized by the caller.
MegatronBlend build_megatron_blend(const std::vector<double>& weights, std::int64_t samples);

}  // namespace kintsugi
