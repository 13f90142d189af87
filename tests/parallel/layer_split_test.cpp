#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "model/parameter_set.h"
#include "parallel/layout.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig model(Family family, std::int64_t layers, std::int64_t vocab) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = vocab;
  config.hidden_size = 32;
  config.layers = layers;
  config.heads = 4;
  config.max_positions = 8;
  config.tied = false;
  if (family == Family::Llama) {
    config.kv_heads = 2;
    config.ffn_size = 80;
  }
  config.complete_and_check();
  return config;
}

// The head's time relative to a layer's, from the elements of the matrices of their matmuls.
double head_in_layers(const ModelConfig& config) {
  double head = 0, layer = 0;
  const ParameterSet set(config);
  for (const Parameter& p : set.parameters()) {
    const auto elements = static_cast<double>(p.shape.elements());
    if (p.group == ParameterGroup::Head) head += elements;
    if (p.name.find(".0.") != std::string::npos && p.shape.rank() == 2) layer += elements;
  }
  return head / layer;
}

double slowest(const std::vector<int>& split, double head) {
  double most = split.back() + head;
  for (const int layers : split) most = std::max(most, static_cast<double>(layers));
  return most;
}

// All ways to write `layers` as a sum of `chunks` positive numbers.
void all_splits(int layers, int chunks, std::vector<int>& begun,
                const std::function<void(const std::vector<int>&)>& use) {
  if (chunks == 1) {
    begun.push_back(layers);
    use(begun);
    begun.pop_back();
    return;
  }
  for (int first = 1; first + chunks - 1 <= layers; ++first) {
    begun.push_back(first);
    all_splits(layers - first, chunks - 1, begun, use);
    begun.pop_back();
  }
}

TEST(LayerSplit, TheSlowestChunkIsAsFastAsPossible) {
  for (const Family family : {Family::Llama, Family::Gpt2})
    for (const std::int64_t vocab : {16, 300, 1000, 3000})
      for (int layers = 1; layers <= 12; ++layers)
        for (int chunks = 1; chunks <= std::min(layers, 6); ++chunks) {
          const ModelConfig config = model(family, layers, vocab);
          const double head = head_in_layers(config);
          double best = 1e9;
          std::vector<int> begun;
          all_splits(layers, chunks, begun, [&](const std::vector<int>& split) {
            best = std::min(best, slowest(split, head));
          });
          const std::vector<int> split = balanced_split(config, chunks);
          ASSERT_EQ(static_cast<int>(split.size()), chunks);
          EXPECT_EQ(std::accumulate(split.begin(), split.end(), 0), layers);
          EXPECT_GE(*std::min_element(split.begin(), split.end()), 1);
          EXPECT_NEAR(slowest(split, head), best, 1e-9)
              << to_string(family) << ": " << layers << " layers in " << chunks << " chunks, head "
              << head;
        }
}

// With a very fast head, the inner chunks get the remaining layers.
TEST(LayerSplit, InnerChunksGetTheRemainder) {
  EXPECT_THAT(balanced_split(model(Family::Llama, 6, 2), 4), ElementsAre(1, 2, 2, 1));
  EXPECT_THAT(balanced_split(model(Family::Llama, 4, 2), 3), ElementsAre(1, 2, 1));
  EXPECT_THAT(balanced_split(model(Family::Llama, 8, 2), 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(balanced_split(model(Family::Llama, 7, 2), 1), ElementsAre(7));
}

TEST(LayerSplit, AGivenSplitIsCheckedWithAnExample) {
  const ModelConfig config = model(Family::Llama, 8, 2);
  EXPECT_THAT(checked_split(config, 4, {1, 3, 3, 1}), ElementsAre(1, 3, 3, 1));
  EXPECT_EQ(checked_split(config, 3, {}), balanced_split(config, 3));
  for (const std::vector<int>& wrong :
       {std::vector{4, 4}, {1, 3, 3, 2}, {0, 4, 3, 1}, {9, 1, -1, -1}, {2, 2, 2, 1, 1}})
    EXPECT_THAT(user_error_of([&] { checked_split(config, 4, wrong); }),
                HasSubstr("it must have 4 numbers (pp × chunks) of at least 1 with the sum 8 "
                          "(layers), such as 2,2,2,2"));
  EXPECT_THAT(user_error_of([&] {
                checked_split(config, 4, {1, 3, 3, 2});
              }),
              HasSubstr("layout.split is 1,3,3,2"));
  EXPECT_THAT(
      user_error_of([&] { checked_split(config, 9, {}); }),
      HasSubstr("8 layers cannot be split into 9 pipeline chunks: use fewer stages or chunks"));
}

// Two ranks with two chunks each: in layer order, 0 and 2 on one, 1 and 3 on the other.
TEST(LayerSplit, ChunksAlternateBetweenRanks) {
  const std::vector<int> split = {1, 2, 3, 4};
  EXPECT_THAT(stage_layers(split, 2, 0),
              ElementsAre(StageLayers{0, 1, true, false}, StageLayers{3, 6, false, false}));
  EXPECT_THAT(stage_layers(split, 2, 1),
              ElementsAre(StageLayers{1, 3, false, false}, StageLayers{6, 10, false, true}));
  EXPECT_THAT(stage_layers({5}, 1, 0), ElementsAre(StageLayers{0, 5, true, true}));
  const ModelShard shard =
      model_shard(stage_layers(split, 2, 1), {.tp = 4, .sequence_parallel = true}, {.tp = 3});
  EXPECT_THAT(shard.layers, ElementsAre(1, 2, 6, 7, 8, 9));
  EXPECT_FALSE(shard.embedding);
  EXPECT_TRUE(shard.head);
  EXPECT_EQ(shard.tp, 4);
  EXPECT_EQ(shard.tp_rank, 3);
  EXPECT_TRUE(shard.sequence_parallel);
}

TEST(LayerSplit, RanksHaveEveryLayerOnce) {
  for (int stages = 1; stages <= 4; ++stages)
    for (int chunks = 1; chunks <= 3; ++chunks) {
      std::vector<int> split, seen;
      for (int chunk = 0; chunk < stages * chunks; ++chunk) split.push_back(1 + chunk % 3);
      int embeddings = 0, heads = 0;
      for (int rank = 0; rank < stages; ++rank) {
        const ModelShard shard = model_shard(stage_layers(split, stages, rank), {}, {});
        EXPECT_TRUE(std::is_sorted(shard.layers.begin(), shard.layers.end()));
        seen.insert(seen.end(), shard.layers.begin(), shard.layers.end());
        embeddings += shard.embedding ? 1 : 0;
        heads += shard.head ? 1 : 0;
        EXPECT_EQ(shard.embedding, rank == 0);
        EXPECT_EQ(shard.head, rank == stages - 1);
      }
      std::sort(seen.begin(), seen.end());
      std::vector<int> all(
          static_cast<std::size_t>(std::accumulate(split.begin(), split.end(), 0)));
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(seen, all);
      EXPECT_EQ(embeddings, 1);
      EXPECT_EQ(heads, 1);
    }
}

}  // namespace
}  // namespace kintsugi
