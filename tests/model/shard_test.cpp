// Compares the shards of every parameter with loops over heads, columns and rows that list the
// elements one by one.
#include "model/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "model/block.h"

namespace kintsugi {
namespace {

using Indices = std::vector<std::int64_t>;  // of elements of the whole parameter; -1: padding
constexpr std::int64_t kPadding = -1;

struct Model {
  Family family;
  std::int64_t vocab, kv_heads;
};

ModelConfig config_of(const Model& model) {
  ModelConfig config;
  config.family = model.family;
  config.vocab_size = model.vocab;
  config.hidden_size = 16;
  config.layers = 1;
  config.heads = 8;
  config.max_positions = 6;
  config.tied = model.family == Family::Qwen2;
  config.kv_heads = model.kv_heads;
  if (model.family == Family::Qwen3) config.head_dim = 4;
  if (config.positions() == PositionKind::Rope) config.ffn_size = 24;
  config.complete_and_check();
  return config;
}

// Lists the elements of a rank's shard of a parameter.
class Naive {
 public:
  Naive(const ModelConfig& config, int tp, int rank) : c_(config), tp_(tp), rank_(rank) {
    for (std::int64_t head = 0; head < c_.heads; ++head)
      if (head * tp / c_.heads == rank) heads_.push_back(head);
    // The key-value heads that these heads read, by the definition of GQA.
    std::set<std::int64_t> kv;
    for (const std::int64_t head : heads_) kv.insert(head / (c_.heads / c_.kv_heads));
    kv_heads_.assign(kv.begin(), kv.end());
  }

  Indices elements(const std::string& name, const Shape& global) const {
    const std::int64_t rows = global[0], columns = global.rank() == 2 ? global[1] : 1;
    const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
    const bool bias = is(".bias");
    if (is("embed_tokens") || is("wte") || is("word_embeddings.weight") || is("lm_head"))
      return take(vocabulary(), rows, all(columns), columns);
    if (is("norm") || is("ln_") || is("wpe")) return everything(global);
    if (is("q_proj")) return take(of_heads(heads_), rows, all(columns), columns);
    if (is("k_proj") || is("v_proj")) return take(of_heads(kv_heads_), rows, all(columns), columns);
    if (is("gate_proj") || is("up_proj") || is("dense_h_to_4h"))
      return take(mlp(), rows, all(columns), columns);
    if (is("c_fc")) return bias ? mlp() : take(all(rows), rows, mlp(), columns);
    if (is("c_attn")) return bias ? thirds() : take(all(rows), rows, thirds(), columns);
    if (is("query_key_value")) return take(triples(), rows, all(columns), columns);
    if (bias) return everything(global);  // of matrices that are sharded by inputs: added once
    if (is("attn.c_proj")) return take(of_heads(heads_), rows, all(columns), columns);
    if (is("mlp.c_proj")) return take(mlp(), rows, all(columns), columns);
    if (is("down_proj") || is("dense_4h_to_h")) return take(all(rows), rows, mlp(), columns);
    if (is("o_proj") || is("attention.dense"))
      return take(all(rows), rows, of_heads(heads_), columns);
    ADD_FAILURE() << "what is " << name << "?";
    return {};
  }
  std::int64_t kv_heads() const { return static_cast<std::int64_t>(kv_heads_.size()); }

 private:
  static Indices all(std::int64_t count) {
    Indices indices;
    for (std::int64_t i = 0; i < count; ++i) indices.push_back(i);
    return indices;
  }
  static Indices everything(const Shape& shape) { return all(shape.elements()); }
  static Indices take(const Indices& rows, std::int64_t all_rows, const Indices& columns,
                      std::int64_t all_columns) {
    Indices indices;
    for (const std::int64_t row : rows)
      for (const std::int64_t column : columns) {
        EXPECT_LT(row, all_rows);
        EXPECT_LT(column, all_columns);
        indices.push_back(row == kPadding ? kPadding : row * all_columns + column);
      }
    return indices;
  }
  Indices of_heads(const Indices& heads) const {
    Indices rows;
    for (const std::int64_t head : heads)
      for (std::int64_t d = 0; d < c_.head_dim; ++d) rows.push_back(head * c_.head_dim + d);
    return rows;
  }
  // GPT-2: all heads of q, then of k, then of v.
  Indices thirds() const {
    Indices columns;
    for (std::int64_t part = 0; part < 3; ++part)
      for (const std::int64_t column : of_heads(heads_))
        columns.push_back(part * c_.heads * c_.head_dim + column);
    return columns;
  }
  // BLOOM: q, k and v of one head, then of the next.
  Indices triples() const {
    Indices rows;
    for (const std::int64_t head : heads_)
      for (std::int64_t part = 0; part < 3; ++part)
        for (std::int64_t d = 0; d < c_.head_dim; ++d)
          rows.push_back((head * 3 + part) * c_.head_dim + d);
    return rows;
  }
  Indices mlp() const {
    Indices columns;
    for (std::int64_t i = 0; i < c_.ffn_size; ++i)
      if (i * tp_ / c_.ffn_size == rank_) columns.push_back(i);
    return columns;
  }
  // The same number of rows on every rank; the last may be padding.
  Indices vocabulary() const {
    std::int64_t each = 1;
    while (each * tp_ < c_.vocab_size) ++each;
    Indices rows;
    for (std::int64_t i = rank_ * each; i < (rank_ + 1) * each; ++i)
      rows.push_back(i < c_.vocab_size ? i : kPadding);
    return rows;
  }

  const ModelConfig& c_;
  int tp_, rank_;
  Indices heads_, kv_heads_;
};

// Elements [first, last) of a rank's shard, from for_each_range().
Indices window(const TensorShard& shard, const Shape& global, int rank, std::int64_t first,
               std::int64_t last) {
  Indices found(static_cast<std::size_t>(last - first), kPadding);
  std::int64_t end = first;
  for_each_range(shard, global, rank, first, last, [&](const ShardRange& range) {
    EXPECT_GE(range.local, end) << "in order";
    EXPECT_GT(range.count, 0);
    EXPECT_LE(range.local + range.count, last);
    for (std::int64_t i = 0; i < range.count; ++i)
      found[static_cast<std::size_t>(range.local + i - first)] = range.global + i;
    end = range.local + range.count;
  });
  return found;
}

void expect_windows(const Parameter& p, int rank, const Indices& expected, std::mt19937& random) {
  const auto size = static_cast<std::int64_t>(expected.size());
  ASSERT_EQ(p.shape.elements(), size);
  ASSERT_EQ(window(p.shard, p.global, rank, 0, size), expected);
  for (int round = 0; round < 12; ++round) {
    std::int64_t first = static_cast<std::int64_t>(random() % static_cast<unsigned>(size + 1)),
                 last = static_cast<std::int64_t>(random() % static_cast<unsigned>(size + 1));
    if (first > last) std::swap(first, last);
    ASSERT_EQ(window(p.shard, p.global, rank, first, last),
              Indices(expected.begin() + first, expected.begin() + last))
        << first << " to " << last;
  }
}

// Checks all parameters of one model on tp ranks.
void expect_sharded(const ModelConfig& config, int tp) {
  std::mt19937 random(17);
  const ParameterSet whole(config);
  std::vector<ParameterSet> ranks;
  for (int rank = 0; rank < tp; ++rank) {
    ModelShard shard = whole_model(config);
    shard.tp = tp;
    shard.tp_rank = rank;
    ranks.emplace_back(config, shard);
    ASSERT_EQ(ranks.back().parameters().size(), whole.parameters().size());
  }
  for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
    const Parameter& full = whole.parameters()[i];
    SCOPED_TRACE(full.name);
    std::vector<int> held(static_cast<std::size_t>(full.shape.elements()), 0);
    std::int64_t padding = 0;
    for (int rank = 0; rank < tp; ++rank) {
      SCOPED_TRACE(rank);
      const Parameter& p = ranks[static_cast<std::size_t>(rank)].parameters()[i];
      ASSERT_EQ(p.name, full.name);
      ASSERT_EQ(p.global, full.shape);
      const Indices expected = Naive(config, tp, rank).elements(p.name, p.global);
      expect_windows(p, rank, expected, random);
      for (int d = 0; d < p.shape.rank(); ++d) {
        if (d != p.shard.dimension) {
          ASSERT_EQ(p.shape[d], p.global[d]) << "dimension " << d;
        }
      }
      if (tp > 1 && p.name == model_spec(config).embedding.table) {
        const RowRange rows = ranks[static_cast<std::size_t>(rank)].rows(static_cast<int>(i));
        ASSERT_EQ(rows.begin * config.hidden_size, expected.front());
        ASSERT_EQ(rows.size() * config.hidden_size,
                  std::count_if(expected.begin(), expected.end(),
                                [](std::int64_t index) { return index != kPadding; }));
      }
      for (const std::int64_t index : expected)
        index == kPadding ? ++padding : ++held[static_cast<std::size_t>(index)];
    }
    const bool sharded = full.shard.dimension >= 0;
    const bool of_kv = full.name.find("k_proj") != std::string::npos ||
                       full.name.find("v_proj") != std::string::npos;
    const int copies = !sharded ? tp
                       : of_kv  ? std::max(1, tp / static_cast<int>(config.kv_heads))
                                : 1;
    for (const int times : held) ASSERT_EQ(times, copies);
    const bool table = full.shape[0] == config.vocab_size && full.shape.rank() == 2;
    ASSERT_EQ(padding > 0, table && config.vocab_size % tp != 0);
  }
}

TEST(Shard, EveryFamilyIsShardedByHeadsColumnsAndRows) {
  for (const std::int64_t vocab : {64, 53, 57})
    for (const int tp : {1, 2, 4, 8}) {
      std::vector<Model> models = {{Family::Gpt2, vocab, 8}, {Family::Bloom, vocab, 8}};
      for (const Family family : {Family::Llama, Family::Qwen2, Family::Qwen3})
        for (const std::int64_t kv_heads : {1, 2, 4, 8})
          models.push_back({family, vocab, kv_heads});
      for (const Model& model : models) {
        SCOPED_TRACE(testing::Message() << to_string(model.family) << ", vocabulary " << vocab
                                        << ", kv heads " << model.kv_heads << ", tp " << tp);
        expect_sharded(config_of(model), tp);
        if (HasFatalFailure()) return;
      }
    }
}

// The width of what the first layer saves under a label, on one of `tp` ranks.
std::int64_t saved_width(const ModelConfig& config, int tp, std::string_view label) {
  Declaration declared({.tensor = tp});
  Block(model_spec(config), 0).declare(declared);
  for (const TensorSpec& spec : declared.saved())
    if (spec.label == label) return spec.width;
  return -1;
}

TEST(Shard, LayersUseTheirHeadsAndColumns) {
  for (const std::int64_t kv_heads : {1, 2, 4, 8})
    for (const int tp : {1, 2, 4, 8}) {
      const ModelConfig config = config_of({Family::Llama, 64, kv_heads});
      const std::int64_t kv = Naive(config, tp, tp - 1).kv_heads();
      EXPECT_EQ(saved_width(config, tp, "q, k, v"), (8 / tp + 2 * kv) * config.head_dim)
          << kv_heads << " on " << tp;
      EXPECT_EQ(saved_width(config, tp, "mlp"), 2 * 24 / tp);
    }
  EXPECT_THROW(saved_width(config_of({Family::Llama, 64, 8}), 3, "mlp"), Failure);
}

// Three dimensions, several parts and an extent that does not divide, by hand: of indices 0 … 4 and
// 5 … 9 of the middle dimension, rank 1 of 2 has the last two of each and one padding.
TEST(Shard, PaddingFollowsEveryPart) {
  const TensorShard shard{.dimension = 1, .parts = 2, .ranks = 2};
  const Shape global{2, 10, 2};
  EXPECT_EQ(shard.local(global, 0), (Shape{2, 6, 2}));
  EXPECT_EQ(window(shard, global, 0, 0, 24),
            (Indices{0,  1,  2,  3,  4,  5,  10, 11, 12, 13, 14, 15,
                     20, 21, 22, 23, 24, 25, 30, 31, 32, 33, 34, 35}));
  EXPECT_EQ(window(shard, global, 1, 0, 24),
            (Indices{6,  7,  8,  9,  -1, -1, 16, 17, 18, 19, -1, -1,
                     26, 27, 28, 29, -1, -1, 36, 37, 38, 39, -1, -1}));
  EXPECT_EQ(window(shard, global, 1, 3, 8), (Indices{9, -1, -1, 16, 17}));
}

// 49 rows on 8 ranks: seven each, and none for the last.
TEST(Shard, ARankMayHaveNothingButPadding) {
  const TensorShard shard{.dimension = 0, .ranks = 8};
  const Shape global{49, 3};
  EXPECT_EQ(shard.local(global, 0), (Shape{7, 3}));
  EXPECT_EQ(window(shard, global, 7, 0, 21), Indices(21, kPadding));
  EXPECT_EQ(rows_of(shard, global, 6).end, 49);
  EXPECT_EQ(rows_of(shard, global, 7).size(), 0);
}

}  // namespace
}  // namespace kintsugi
