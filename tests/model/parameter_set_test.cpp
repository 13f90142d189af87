#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "model/parameter_store.h"

namespace kintsugi {
namespace {

ModelConfig small(Family family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 10;
  config.hidden_size = 8;
  config.layers = 2;
  config.heads = 4;
  config.max_positions = 12;
  config.init_std = 0.5;
  if (config.positions() == PositionKind::Rope) {
    config.kv_heads = 2;
    config.ffn_size = 6;
  }
  config.complete_and_check();
  return config;
}

constexpr double kStd = 0.5;
constexpr double kResidualStd = 0.25;  // 0.5 / sqrt(2 x 2 layers)
constexpr auto kOnes = InitKind::Ones;
constexpr auto kZeros = InitKind::Zeros;

// A row of the tables below; std is that of a matrix, init that of a vector.
struct ExpectedParameter {
  std::string name;
  Shape shape;
  int tp_dimension;
  ParameterGroup group;
  double std = 0;
  InitKind init = InitKind::Normal;
  bool packed = false;
  int tp_parts = 1;
};

void expect_rows(const ParameterSet& set, const std::vector<ExpectedParameter>& rows,
                 std::size_t first = 0) {
  ASSERT_LE(first + rows.size(), set.parameters().size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Parameter& p = set.parameters()[first + i];
    SCOPED_TRACE(rows[i].name);
    EXPECT_EQ(p.name, rows[i].name);
    EXPECT_EQ(p.shape, rows[i].shape) << to_string(p.shape);
    EXPECT_EQ(p.shard.dimension, rows[i].tp_dimension);
    EXPECT_EQ(p.shard.parts, rows[i].tp_parts);
    EXPECT_EQ(p.group, rows[i].group);
    EXPECT_EQ(p.init.kind, rows[i].init);
    EXPECT_DOUBLE_EQ(p.init.scale, rows[i].std);
    EXPECT_EQ(p.packed, rows[i].packed);
    EXPECT_EQ(p.decay, rows[i].shape.rank() == 2);
  }
}

constexpr auto E = ParameterGroup::Embedding;
constexpr auto A = ParameterGroup::Attention;
constexpr auto M = ParameterGroup::Mlp;
constexpr auto N = ParameterGroup::Norm;
constexpr auto H = ParameterGroup::Head;
constexpr auto kNormal = InitKind::Normal;

TEST(ParameterSetTest, Llama) {
  ModelConfig config = small(Family::Llama);
  config.tied = false;
  const ParameterSet set(config);
  std::vector<ExpectedParameter> rows = {{"model.embed_tokens.weight", {10, 8}, 0, E, kStd}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    rows.push_back({layer + "self_attn.q_proj.weight", {8, 8}, 0, A, kStd});
    rows.push_back({layer + "self_attn.k_proj.weight", {4, 8}, 0, A, kStd, kNormal, true});
    rows.push_back({layer + "self_attn.v_proj.weight", {4, 8}, 0, A, kStd, kNormal, true});
    rows.push_back({layer + "self_attn.o_proj.weight", {8, 8}, 1, A, kResidualStd});
    rows.push_back({layer + "mlp.gate_proj.weight", {6, 8}, 0, M, kStd});
    rows.push_back({layer + "mlp.up_proj.weight", {6, 8}, 0, M, kStd, kNormal, true});
    rows.push_back({layer + "mlp.down_proj.weight", {8, 6}, 1, M, kResidualStd});
    rows.push_back({layer + "input_layernorm.weight", {8}, -1, N, 0, kOnes});
    rows.push_back({layer + "post_attention_layernorm.weight", {8}, -1, N, 0, kOnes});
  }
  rows.push_back({"lm_head.weight", {10, 8}, 0, H, kStd});
  rows.push_back({"model.norm.weight", {8}, -1, N, 0, kOnes});
  ASSERT_EQ(set.parameters().size(), rows.size());
  expect_rows(set, rows);

  // Offsets computed by hand: multiples of 64 elements, except inside packed parameters.
  const std::map<std::string, std::int64_t> offsets = {
      {"model.embed_tokens.weight", 0},
      {"model.layers.0.self_attn.q_proj.weight", 128},
      {"model.layers.0.self_attn.k_proj.weight", 192},
      {"model.layers.0.self_attn.v_proj.weight", 224},
      {"model.layers.0.self_attn.o_proj.weight", 256},
      {"model.layers.0.mlp.gate_proj.weight", 320},
      {"model.layers.0.mlp.up_proj.weight", 368},
      {"model.layers.0.mlp.down_proj.weight", 448},
      {"model.layers.0.input_layernorm.weight", 512},
      {"model.layers.0.post_attention_layernorm.weight", 576},
      {"model.layers.1.self_attn.q_proj.weight", 640},
      {"lm_head.weight", 1152},
      {"model.norm.weight", 1280},
  };
  for (const auto& [name, offset] : offsets) EXPECT_EQ(set[set.index(name)].offset, offset) << name;
  const std::vector<std::array<std::int64_t, 3>> buckets = {
      {0, 128, 128}, {128, 512, 640}, {640, 1024, 1152}, {1152, 1280, 1344}};
  ASSERT_EQ(set.buckets().size(), buckets.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(set.buckets()[i].begin, buckets[i][0]);
    EXPECT_EQ(set.buckets()[i].decay_end, buckets[i][1]);
    EXPECT_EQ(set.buckets()[i].end, buckets[i][2]);
  }
  EXPECT_EQ(set.buffer_elements(), 1344);
  EXPECT_EQ(set.elements(), 80 + 2 * (64 + 32 + 32 + 64 + 3 * 48 + 16) + 80 + 8);
  EXPECT_THROW(set.index("model.layers.2.input_layernorm.weight"), Failure);
}

TEST(ParameterSetTest, Qwen2AddsPackedBiases) {
  const ParameterSet set(small(Family::Qwen2));
  expect_rows(set,
              {{"model.layers.0.mlp.down_proj.weight", {8, 6}, 1, M, kResidualStd},
               {"model.layers.0.input_layernorm.weight", {8}, -1, N, 0, kOnes},
               {"model.layers.0.self_attn.q_proj.bias", {8}, 0, A, 0, kZeros},
               {"model.layers.0.self_attn.k_proj.bias", {4}, 0, A, 0, kZeros, true},
               {"model.layers.0.self_attn.v_proj.bias", {4}, 0, A, 0, kZeros, true},
               {"model.layers.0.post_attention_layernorm.weight", {8}, -1, N, 0, kOnes}},
              7);
  const int q = set.index("model.layers.0.self_attn.q_proj.bias");
  EXPECT_EQ(set[q].offset % 64, 0);
  EXPECT_EQ(set[q + 1].offset, set[q].offset + 8);
  EXPECT_EQ(set[q + 2].offset, set[q].offset + 12);
  EXPECT_EQ(set.parameters().back().name, "model.norm.weight");  // tied: no head
}

TEST(ParameterSetTest, Qwen3AddsNormsOfHeads) {
  ModelConfig config = small(Family::Qwen3);
  config.head_dim = 6;
  const ParameterSet set(config);
  expect_rows(set,
              {{"model.layers.0.self_attn.q_proj.weight", {24, 8}, 0, A, kStd},
               {"model.layers.0.self_attn.k_proj.weight", {12, 8}, 0, A, kStd, kNormal, true},
               {"model.layers.0.self_attn.v_proj.weight", {12, 8}, 0, A, kStd, kNormal, true},
               {"model.layers.0.self_attn.o_proj.weight", {8, 24}, 1, A, kResidualStd}},
              1);
  expect_rows(set,
              {{"model.layers.0.input_layernorm.weight", {8}, -1, N, 0, kOnes},
               {"model.layers.0.self_attn.q_norm.weight", {6}, -1, N, 0, kOnes},
               {"model.layers.0.self_attn.k_norm.weight", {6}, -1, N, 0, kOnes},
               {"model.layers.0.post_attention_layernorm.weight", {8}, -1, N, 0, kOnes}},
              8);
}

TEST(ParameterSetTest, Gpt2StoresInputsFirst) {
  const ParameterSet set(small(Family::Gpt2));
  std::vector<ExpectedParameter> rows = {{"transformer.wte.weight", {10, 8}, 0, E, kStd},
                                         {"transformer.wpe.weight", {12, 8}, -1, E, kStd}};
  for (const std::string layer : {"transformer.h.0.", "transformer.h.1."}) {
    rows.push_back({layer + "attn.c_attn.weight", {8, 24}, 1, A, kStd, kNormal, false, 3});
    rows.push_back({layer + "attn.c_proj.weight", {8, 8}, 0, A, kResidualStd});
    rows.push_back({layer + "mlp.c_fc.weight", {8, 32}, 1, M, kStd});
    rows.push_back({layer + "mlp.c_proj.weight", {32, 8}, 0, M, kResidualStd});
    rows.push_back({layer + "ln_1.weight", {8}, -1, N, 0, kOnes});
    rows.push_back({layer + "ln_1.bias", {8}, -1, N, 0, kZeros});
    rows.push_back({layer + "attn.c_attn.bias", {24}, 0, A, 0, kZeros, false, 3});
    rows.push_back({layer + "attn.c_proj.bias", {8}, -1, A, 0, kZeros});
    rows.push_back({layer + "ln_2.weight", {8}, -1, N, 0, kOnes});
    rows.push_back({layer + "ln_2.bias", {8}, -1, N, 0, kZeros});
    rows.push_back({layer + "mlp.c_fc.bias", {32}, 0, M, 0, kZeros});
    rows.push_back({layer + "mlp.c_proj.bias", {8}, -1, M, 0, kZeros});
  }
  rows.push_back({"transformer.ln_f.weight", {8}, -1, N, 0, kOnes});
  rows.push_back({"transformer.ln_f.bias", {8}, -1, N, 0, kZeros});
  ASSERT_EQ(set.parameters().size(), rows.size());
  expect_rows(set, rows);
  EXPECT_EQ(set.buckets().back().begin, set.buckets().back().decay_end);  // nothing decays there
}

TEST(ParameterSetTest, BloomNormalisesItsEmbedding) {
  const ParameterSet set(small(Family::Bloom));
  expect_rows(set, {{"transformer.word_embeddings.weight", {10, 8}, 0, E, kStd},
                    {"transformer.word_embeddings_layernorm.weight", {8}, -1, N, 0, kOnes},
                    {"transformer.word_embeddings_layernorm.bias", {8}, -1, N, 0, kZeros},
                    {"transformer.h.0.self_attention.query_key_value.weight", {24, 8}, 0, A, kStd},
                    {"transformer.h.0.self_attention.dense.weight", {8, 8}, 1, A, kResidualStd},
                    {"transformer.h.0.mlp.dense_h_to_4h.weight", {32, 8}, 0, M, kStd},
                    {"transformer.h.0.mlp.dense_4h_to_h.weight", {8, 32}, 1, M, kResidualStd},
                    {"transformer.h.0.input_layernorm.weight", {8}, -1, N, 0, kOnes},
                    {"transformer.h.0.input_layernorm.bias", {8}, -1, N, 0, kZeros},
                    {"transformer.h.0.self_attention.query_key_value.bias", {24}, 0, A, 0, kZeros},
                    {"transformer.h.0.self_attention.dense.bias", {8}, -1, A, 0, kZeros},
                    {"transformer.h.0.post_attention_layernorm.weight", {8}, -1, N, 0, kOnes},
                    {"transformer.h.0.post_attention_layernorm.bias", {8}, -1, N, 0, kZeros},
                    {"transformer.h.0.mlp.dense_h_to_4h.bias", {32}, 0, M, 0, kZeros},
                    {"transformer.h.0.mlp.dense_4h_to_h.bias", {8}, -1, M, 0, kZeros}});
  EXPECT_EQ(set.parameters().back().name, "transformer.ln_f.bias");
}

// For every preset: order, alignment, no overlap, and index() finds every name.
TEST(ParameterSetTest, OffsetsObeyTheRules) {
  for (const std::string& name : preset_names()) {
    SCOPED_TRACE(name);
    const ModelConfig config = load_preset(name);
    const ParameterSet set(config);
    const auto wide = std::ranges::count_if(set.parameters(), &Parameter::wide);  // apart
    ASSERT_EQ(std::ssize(set.buckets()), config.layers + 2 + wide);
    std::int64_t end = 0;
    for (int i = 0; i < static_cast<int>(set.parameters().size()); ++i) {
      const Parameter& p = set[i];
      const Bucket& bucket = set.buckets()[p.bucket];
      ASSERT_EQ(set.index(p.name), i);
      ASSERT_GE(p.offset, end) << p.name;
      ASSERT_LT(p.offset - end, 64) << p.name;
      if (p.packed)
        ASSERT_EQ(p.offset, end) << p.name;
      else
        ASSERT_EQ(p.offset % 64, 0) << p.name;
      end = p.offset + p.shape.elements();
      ASSERT_GE(p.offset, p.decay ? bucket.begin : bucket.decay_end) << p.name;
      ASSERT_LE(end, p.decay ? bucket.decay_end : bucket.end) << p.name;
      ASSERT_EQ(p.decay, p.shape.rank() == 2) << p.name;
    }
    std::int64_t begin = 0;
    for (const Bucket& bucket : set.buckets()) {
      ASSERT_EQ(bucket.begin, begin);
      ASSERT_EQ(bucket.decay_end % 64, 0);
      ASSERT_EQ(bucket.end % 64, 0);
      begin = bucket.end;
    }
    EXPECT_EQ(set.buffer_elements(), begin);
  }
}

TEST(ParameterStoreTest, LaysOutWeightsAndGradients) {
  const ParameterSet set(small(Family::Llama));
  PlanningAllocator allocator;
  Arena arena(allocator);
  const ParameterStore store(set, arena, DType::BF16, true);
  EXPECT_EQ(store.dtype(), DType::BF16);
  EXPECT_EQ(store.gradients().dtype(), DType::F32);
  EXPECT_EQ(arena.bytes(Region::Weights), static_cast<std::size_t>(set.buffer_elements()) * 2);
  EXPECT_EQ(arena.bytes(Region::Gradients), static_cast<std::size_t>(set.buffer_elements()) * 4);

  const int q = set.index("model.layers.0.self_attn.q_proj.weight");
  const auto address = [](Tensor tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data());
  };
  EXPECT_EQ(address(store.weight(q)), address(store.weights()) + 2 * 128);
  EXPECT_EQ(address(store.gradient(q)), address(store.gradients()) + 4 * 128);
  EXPECT_EQ(store.weight(q).shape(), (Shape{8, 8}));
  EXPECT_EQ(store.weight(q, {16, 8}).shape(), (Shape{16, 8}));  // q, k and v as one matrix
  EXPECT_EQ(address(store.gradient(q, {16, 8})), address(store.gradient(q)));
  EXPECT_THROW(store.weight(q, {15, 8}), Failure);
  EXPECT_THROW(store.weight(q, {24, 8}), Failure);  // o is not packed
  EXPECT_THROW(store.weight(q, {4, 8}), Failure);
}

// Their weights may be stored in another precision than those of the rest of the layer.
TEST(ParameterSetTest, MatricesOfFp8MatmulsHaveTheirOwnBuckets) {
  ModelConfig config = small(Family::Llama);
  config.hidden_size = 16;
  config.head_dim = 0;
  config.ffn_size = 32;
  config.fp8 = {.recipe = Fp8Recipe::Rowwise, .filter = {"head", "mlp.down"}};
  config.complete_and_check();
  const ParameterSet set(config);
  for (const Parameter& parameter : set.parameters()) {
    const Bucket& bucket = set.buckets()[static_cast<std::size_t>(parameter.bucket)];
    const bool matrix = parameter.name.find("_proj.weight") != std::string::npos &&
                        parameter.name.find("down_proj") == std::string::npos;
    EXPECT_EQ(parameter.fp8, matrix) << parameter.name;
    EXPECT_EQ(bucket.fp8, matrix) << parameter.name;
    EXPECT_TRUE(bucket.begin <= parameter.offset &&
                parameter.offset + parameter.shape.elements() <= bucket.end)
        << parameter.name;
  }
  EXPECT_EQ(set.buckets().size(), 2u + 2 * static_cast<std::size_t>(config.layers));
}

class RecordedHooks final : public BucketHooks {
 public:
  void need_weights(int bucket) override { calls.push_back(fmt::format("need {}", bucket)); }
  void prefetch_weights(int bucket) override { calls.push_back(fmt::format("next {}", bucket)); }
  void done_with_weights(int) override {}
  void need_gradients(int, bool) override {}
  void done_with_gradients(int, bool, bool) override {}
  std::vector<std::string> calls;
};

// The next layer may have more buckets than this one.
TEST(BucketHooksTest, PrefetchAllBucketsOfTheNextLayer) {
  RecordedHooks hooks;
  hooks.need_all_weights({4}, {5, 6});
  EXPECT_EQ(hooks.calls, (std::vector<std::string>{"need 4", "next 5", "next 6"}));
}

TEST(ParameterStoreTest, WorksWithoutGradients) {
  const ParameterSet set(small(Family::Gpt2));
  PlanningAllocator allocator;
  Arena arena(allocator);
  const ParameterStore store(set, arena, DType::F64, false);
  EXPECT_EQ(arena.bytes(Region::Gradients), 0u);
  EXPECT_FALSE(store.gradients());
  EXPECT_FALSE(store.gradient(0));
  EXPECT_TRUE(store.weight(0));
  const ParameterStore training(set, arena, DType::F64, true);
  EXPECT_EQ(training.gradients().dtype(), DType::F64);
}

}  // namespace
}  // namespace kintsugi
