#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kintsugi {

// Blends sources exactly as Megatron-LM does, bit for bit: a weight that differs by one rounding
// gives another order. The reference is Megatron-LM on x86: no fused multiply-add (CMake compiles
// the .cpp file accordingly), sums in the order of numpy.

enum class MegatronVersion : std::uint8_t { Newest, V010 };  // V010: 0.4 up to 0.10

// numpy.sum of float64 values: sequential below 8 values, otherwise pairwise.
double numpy_sum(std::span<const double> values);
// Divides the weights by their sum. Megatron does so in its builder and again in BlendedDataset.
std::vector<double> megatron_normalized(const std::vector<double>& weights);

// The number of samples that Megatron requests from a source with this normalized weight for a run
// of `samples`: slightly more than the weight times `samples`.
std::int64_t megatron_request(std::int64_t samples, double weight, MegatronVersion version);

struct MegatronBlend {
  std::vector<std::int16_t> source;
  std::vector<std::int64_t> number;  // index of the sample within that source
};
// The weights must be normalized.
MegatronBlend build_megatron_blend(const std::vector<double>& weights, std::int64_t samples);

}  // namespace kintsugi
