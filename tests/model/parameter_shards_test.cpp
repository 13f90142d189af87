// The parameter sets of all ranks together contain every parameter of the model once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "model/parameter_set.h"

namespace kintsugi {
namespace {

constexpr int kLayers = 5;

ModelConfig config_of(Family family, bool tied, std::int64_t kv_heads) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 53;
  config.hidden_size = 16;
  config.layers = kLayers;
  config.heads = 8;
  config.max_positions = 6;
  config.tied = tied;
  if (family == Family::Qwen3) config.head_dim = 4;
  if (config.positions() == PositionKind::Rope) {
    config.kv_heads = kv_heads;
    config.ffn_size = 24;
  }
  config.complete_and_check();
  return config;
}

// Every family, tied and untied, with more and fewer key-value heads than ranks.
std::vector<ModelConfig> models() {
  std::vector<ModelConfig> all;
  for (const bool tied : {true, false}) {
    for (const Family family : {Family::Gpt2, Family::Bloom})
      all.push_back(config_of(family, tied, 8));
    for (const Family family : {Family::Llama, Family::Qwen2, Family::Qwen3})
      for (const std::int64_t kv_heads : {2, 8}) all.push_back(config_of(family, tied, kv_heads));
  }
  return all;
}
std::string described(const ModelConfig& config) {
  return fmt::format("{}{}, {} kv heads", to_string(config.family), config.tied ? " tied" : "",
                     config.kv_heads);
}

// From the papers' descriptions of the families.
std::int64_t parameters_of(const ModelConfig& c) {
  const std::int64_t h = c.hidden_size, table = c.vocab_size * h;
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  std::int64_t sum = table + (c.tied ? 0 : table);
  switch (c.family) {
    case Family::Gpt2:
      return sum + c.max_positions * h + 2 * h + c.layers * (12 * h * h + 13 * h);
    case Family::Bloom:
      return sum + 4 * h + c.layers * (12 * h * h + 13 * h);
    default:
      break;
  }
  std::int64_t layer = 2 * h + 2 * h * q + 2 * h * kv + 3 * h * c.ffn_size;
  if (c.family == Family::Qwen2) layer += q + 2 * kv;
  if (c.family == Family::Qwen3) layer += 2 * c.head_dim;
  return sum + h + c.layers * layer;
}

// One of pp stages; layers are distributed about evenly.
ModelShard stage(int pp, int stage, int tp = 1, int tp_rank = 0, bool sequence_parallel = false) {
  ModelShard shard{.tp = tp,
                   .tp_rank = tp_rank,
                   .sequence_parallel = sequence_parallel,
                   .embedding = stage == 0,
                   .head = stage == pp - 1};
  for (int layer = 0; layer < kLayers; ++layer)
    if (layer * pp / kLayers == stage) shard.layers.push_back(layer);
  return shard;
}

std::int64_t real_elements(const Parameter& p, int rank) {
  std::int64_t sum = 0;
  for_each_range(p.shard, p.global, rank, 0, p.shape.elements(),
                 [&](const ShardRange& range) { sum += range.count; });
  return sum;
}

TEST(ParameterShards, StagesPartitionTheParameters) {
  for (const ModelConfig& config : models())
    for (const int pp : {1, 2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << described(config) << ", pp " << pp);
      std::map<std::string, int> times, counted;
      for (int s = 0; s < pp; ++s) {
        const ParameterSet set(config, stage(pp, s));
        for (const Parameter& p : set.parameters()) {
          ++times[p.name];
          counted[p.name] += p.counted ? 1 : 0;
          EXPECT_EQ(p.shape, p.global) << p.name;
        }
      }
      std::map<std::string, int> expected;
      const ParameterSet whole(config);
      for (const Parameter& p : whole.parameters()) expected[p.name] = 1;
      EXPECT_EQ(counted, expected);
      if (config.tied && pp > 1) expected[model_spec(config).embedding.table] = 2;
      EXPECT_EQ(times, expected);
    }
}

TEST(ParameterShards, CountedElementsAreTheModels) {
  for (const ModelConfig& config : models())
    for (const int pp : {1, 2, 3})
      for (const int tp : {1, 2, 4, 8})
        for (const bool sequence_parallel : {false, true}) {
          std::int64_t sum = 0;
          for (int s = 0; s < pp; ++s)
            for (int rank = 0; rank < tp; ++rank) {
              const ParameterSet set(config, stage(pp, s, tp, rank, sequence_parallel && tp > 1));
              for (const Parameter& p : set.parameters())
                if (p.counted) sum += real_elements(p, rank);
            }
          EXPECT_EQ(sum, parameters_of(config))
              << described(config) << ", pp " << pp << ", tp " << tp;
        }
}

// The ranks of the head and of the embedding all-reduce their gradients in place, so both buckets
// must have the same layout.
TEST(ParameterShards, ASharedTableIsTheFirstBucketOnBothSides) {
  for (const ModelConfig& config : models())
    for (const int tp : {1, 4}) {
      SCOPED_TRACE(testing::Message() << described(config) << ", tp " << tp);
      const ParameterSet first(config, stage(3, 0, tp, tp - 1)),
          inner(config, stage(3, 1, tp, tp - 1)), last(config, stage(3, 2, tp, tp - 1));
      const auto is_table = [](const Bucket& bucket) { return bucket.role == Bucket::Role::Table; };
      for (const ParameterSet* set : {&first, &inner, &last}) {
        const auto& buckets = set->buckets();
        const bool has_tied_copy = config.tied && set != &inner;
        EXPECT_EQ(std::count_if(buckets.begin(), buckets.end(), is_table), has_tied_copy ? 1 : 0);
        EXPECT_EQ(is_table(buckets.front()), has_tied_copy);
        EXPECT_EQ(std::count_if(buckets.begin(), buckets.end(),
                                [](const Bucket& b) { return b.role == Bucket::Role::Block; }),
                  set == &first   ? 2
                  : set == &inner ? 2
                                  : 1);
      }
      if (!config.tied) continue;
      EXPECT_EQ(first.buckets()[0].end, last.buckets()[0].end);
      EXPECT_EQ(first.buckets()[0].decay_end, last.buckets()[0].decay_end);
      EXPECT_EQ(first[0].name, model_spec(config).embedding.table);
      EXPECT_EQ(last[0].name, first[0].name);
      EXPECT_EQ(last[0].shape, first[0].shape);
      EXPECT_EQ(last[0].offset, 0);
      EXPECT_EQ(first[0].offset, 0);
      EXPECT_EQ(last[1].bucket, 1) << "nothing else in that bucket";
      EXPECT_EQ(first[1].bucket, 1);
      EXPECT_TRUE(first[0].counted);
      EXPECT_FALSE(last[0].counted);
      EXPECT_TRUE(last[0].overwritten) << "by the head's matmul";
      EXPECT_FALSE(first[0].overwritten) << "rows are added to it";
    }
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

using Kinds = std::vector<GroupKind>;

// A rank has only a partial gradient of norms of its heads, of copied key and value heads, and,
// with sequence parallelism, of everything that is applied to its rows.
Kinds expected_sum(const ModelConfig& config, const std::string& name, int tp, bool rows_split,
                   bool has_tied_copy) {
  if (name == model_spec(config).embedding.table)
    return has_tied_copy ? Kinds{GroupKind::Tied} : Kinds{};
  if (tp == 1) return {};
  if (contains(name, "q_norm") || contains(name, "k_norm")) return {GroupKind::Tp};
  if (contains(name, "k_proj") || contains(name, "v_proj"))
    return config.kv_heads < tp ? Kinds{GroupKind::Kv} : Kinds{};
  const bool on_rows = contains(name, "norm") || contains(name, "ln_") || contains(name, "wpe") ||
                       contains(name, "c_proj.bias") || contains(name, "dense.bias") ||
                       contains(name, "dense_4h_to_h.bias");
  return on_rows && rows_split ? Kinds{GroupKind::Tp} : Kinds{};
}

TEST(ParameterShards, PartialGradientsAreSummed) {
  for (const ModelConfig& config : models())
    for (const int pp : {1, 3})
      for (const int tp : {1, 2, 8})
        for (const bool rows_split : {false, true}) {
          if (rows_split && tp == 1) continue;
          for (int s = 0; s < pp; ++s) {
            const ParameterSet set(config, stage(pp, s, tp, tp / 2, rows_split));
            const bool has_tied_copy = config.tied && pp > 1 && (s == 0 || s == pp - 1);
            for (const Parameter& p : set.parameters())
              EXPECT_EQ(p.sum_over, expected_sum(config, p.name, tp, rows_split, has_tied_copy))
                  << p.name << " of " << described(config) << ", tp " << tp << ", stage " << s
                  << " of " << pp << (rows_split ? ", sequence parallel" : "");
          }
        }
}

// Of neighbouring ranks with the same key and value heads, the first counts them.
TEST(ParameterShards, OneOfTheCopiesCounts) {
  const ModelConfig config = config_of(Family::Llama, true, 2);
  for (int rank = 0; rank < 8; ++rank) {
    const ParameterSet set(config, stage(1, 0, 8, rank));
    const auto find = [&](const char* name) { return set[set.index(name)]; };
    EXPECT_EQ(find("model.layers.0.self_attn.k_proj.weight").counted, rank % 4 == 0) << rank;
    EXPECT_EQ(find("model.layers.0.self_attn.v_proj.weight").counted, rank % 4 == 0) << rank;
    EXPECT_TRUE(find("model.layers.0.self_attn.q_proj.weight").counted) << rank;
    EXPECT_EQ(find("model.norm.weight").counted, rank == 0) << rank;
  }
}

// A layer has one bucket per kind of data groups.
TEST(ParameterShards, BucketsHoldParametersOfTheSameDataGroups) {
  static constexpr DataGroups kOther{GroupKind::Replica, GroupKind::Shard};
  for (const ModelConfig& config : models()) {
    const ParameterSet plain(config);
    const ParameterSet set(config, whole_model(config), [](const Parameter& p) {
      return p.group == ParameterGroup::Mlp && p.decay ? kOther : DataGroups{};
    });
    EXPECT_EQ(set.buckets().size(),
              plain.buckets().size() + static_cast<std::size_t>(config.layers));
    EXPECT_EQ(set.parameters().size(), plain.parameters().size());
    for (const Parameter& p : set.parameters()) {
      const Bucket& bucket = set.buckets()[static_cast<std::size_t>(p.bucket)];
      EXPECT_EQ(bucket.data, p.data) << p.name;
      EXPECT_EQ(p.data == kOther, p.group == ParameterGroup::Mlp && p.decay) << p.name;
      EXPECT_GE(p.offset, bucket.begin) << p.name;
      EXPECT_LE(p.offset + p.shape.elements(), bucket.end) << p.name;
      const Parameter& same = plain[plain.index(p.name)];
      EXPECT_EQ(bucket.layer, plain.buckets()[static_cast<std::size_t>(same.bucket)].layer);
    }
  }
}

}  // namespace
}  // namespace kintsugi
