// The expected orders come from Megatron-LM's own build_blending_indices, compiled for x86-64,
// after its normalize() in the builder and again in BlendedDataset. The expected sums come from
// numpy:
//   python3 -c 'import numpy; print(numpy.sum([0.1 * (i % 7 + 1) + 1.0 / (i + 1) for i in
//   range(N)]).hex())'
#include "data/sampling/megatron_blend.h"

#include <gtest/gtest.h>

namespace kintsugi {
namespace {

using Sources = std::vector<std::int16_t>;

Sources blend_of(const std::vector<double>& weights, std::int64_t samples) {
  return build_megatron_blend(megatron_normalized(megatron_normalized(weights)), samples).source;
}

TEST(MegatronBlendTest, SumsAreNumpysPairwiseOnes) {
  const auto sum = [](int count) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(0.1 * (i % 7 + 1) + 1.0 / (i + 1));
    return numpy_sum(values);
  };
  EXPECT_EQ(sum(0), 0);
  EXPECT_EQ(sum(3), 0x1.3777777777778p+1);
  EXPECT_EQ(sum(7), 0x1.5924924924924p+2);
  EXPECT_EQ(sum(8), 0x1.678af8af8af8bp+2);
  EXPECT_EQ(sum(9), 0x1.7b74374374374p+2);
  EXPECT_EQ(sum(16), 0x1.28fbbb5e9ea42p+3);
  EXPECT_EQ(sum(23), 0x1.8de5b74fa18c8p+3);
  EXPECT_EQ(sum(127), 0x1.bf6715d2a8394p+5);
  EXPECT_EQ(sum(128), 0x1.c110af6c41d2fp+5);
  EXPECT_EQ(sum(129), 0x1.c386f61229376p+5);
  EXPECT_EQ(sum(136), 0x1.da592cd189cb4p+5);
  EXPECT_EQ(sum(200), 0x1.551cb42515d48p+6);
  EXPECT_EQ(sum(1000), 0x1.972f7b04b06ccp+8);
}

// With a fused multiply-add, sample 10 would come from source 1.
TEST(MegatronBlendTest, NothingIsFused) {
  const MegatronBlend blend = build_megatron_blend({0.5, 0.3, 0.2}, 20);
  EXPECT_EQ(blend.source, (Sources{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1, 2, 0, 1, 0, 2, 0, 1, 0}));
  EXPECT_EQ(blend.number, (std::vector<std::int64_t>{0, 0, 0, 1, 1, 2, 1, 3, 2, 4,
                                                     5, 3, 2, 6, 4, 7, 3, 8, 5, 9}));
}

// Normalized only once, sample 2 would come from source 0.
TEST(MegatronBlendTest, WeightsAreNormalizedTwice) {
  EXPECT_EQ(blend_of({0.6, 0.3, 0.1}, 20),
            (Sources{0, 1, 2, 0, 0, 1, 0, 0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1, 0}));
}

TEST(MegatronBlendTest, EightEqualSourcesTakeTurns) {
  const Sources sources = blend_of(std::vector<double>(8, 0.1), 80);
  for (std::size_t k = 0; k < sources.size(); ++k) EXPECT_EQ(sources[k], k % 8) << k;
}

}  // namespace
}  // namespace kintsugi
