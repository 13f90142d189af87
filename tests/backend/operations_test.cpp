// Tests of every operation in backend/operations.def.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/sim/sim_backend.h"
#include "backend/traced_backend.h"

namespace kintsugi {
namespace {

using Operands = std::vector<Tensor>;

// Operands that an operation takes, at addresses that nobody reads.
Tensor at(DType type, Shape shape) { return {reinterpret_cast<void*>(4096), type, shape}; }
Tensor h(Shape shape) { return at(DType::BF16, shape); }  // an activation
Tensor f(Shape shape) { return at(DType::F32, shape); }   // its accumulator type
Tensor i(Shape shape) { return at(DType::I32, shape); }

constexpr int kShape = -1;  // as a dimension: any shape of so many elements

struct Call {
  std::string operation;
  Operands operands;
  std::function<void(Backend&, const Operands&)> call;
  std::vector<std::pair<std::size_t, int>> any_extent =
      {};                                    // (operand, dimension): nothing fixes it
  std::vector<std::size_t> any_number = {};  // operands of any floating-point type
};

#define CALL(...) [](Backend& b, const Operands& x) { __VA_ARGS__; }

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {

      {"matmul",
       {h({4, 16}), h({4, 8}), h({8, 16}), h({16}), h({4, 16}), h({4, 8})},
       CALL(b.matmul(x[0], x[1], x[2], {.bias = x[3], .residual = x[4], .swiglu = x[5]}))},
      {"matmul",
       {f({4, 16}), h({8, 4}), h({16, 8})},
       CALL(b.matmul(x[0], x[1], x[2],
                     {.transpose_a = true, .transpose_b = true, .accumulate = true}))},
      {"matmul",
       {h({4, 16}), h({4, 8}), h({8, 16}), h({16}), h({4, 16})},
       CALL(b.matmul(x[0], x[1], x[2], {.bias = x[3], .gelu = x[4]}))},
      {"matmul",
       {h({3, 4, 16}), h({3, 8, 4}), h({3, 8, 16}), h({3, 4, 16})},
       CALL(b.matmul(x[0], x[1], x[2], {.transpose_a = true, .residual = x[3], .scale = 2}))},
      {"bias_backward", {f({8}), h({4, 8})}, CALL(b.bias_backward(x[0], x[1])), {{1, 0}}},
      {"quantize",
       {at(DType::F8, {4, 8}), f({4}), at(DType::F8, {8, 4}), f({8}), h({4, 8}), i({4}), i({8}),
        f({4})},
       CALL(b.quantize({x[0], x[1]}, {x[2], x[3]}, x[4],
                       {.maxima = {x[5], x[6]}, .statistics = x[7]})),
       {},
       {4}},
      {"quantize",
       {at(DType::F8, {12, 8}), f({12}), at(DType::F8, {24, 4}), f({24}), h({3, 4, 8}), i({12}),
        i({24})},
       CALL(b.quantize({x[0], x[1]}, {x[2], x[3]}, x[4], {.maxima = {x[5], x[6]}})),
       {},
       {4}},
      {"quantize",
       {at(DType::F8, {4, 8}), f({4}), h({4, 8}), i({4}), i({3})},
       CALL(b.quantize({x[0], x[1]}, {}, x[2], {.used = {.rows = x[3], .offsets = x[4]}})),
       {{4, 0}, {4, kShape}},
       {2}},
      {"find_maxima",
       {i({4}), i({8}), h({4, 8})},
       CALL(b.find_maxima({x[0], x[1]}, x[2])),
       {},
       {2}},
      {"matmul_fp8",
       {h({16, 32}), at(DType::F8, {16, 48}), f({16}), at(DType::F8, {32, 48}), f({32}), h({32}),
        h({16, 32})},
       CALL(b.matmul_fp8(x[0], {x[1], x[2]}, {x[3], x[4]}, {.bias = x[5], .residual = x[6]}))},

      {"rms_norm_forward",
       {h({4, 8}), f({4}), h({4, 8}), h({8}), i({4}), i({8})},
       CALL(b.rms_norm_forward(x[0], x[1], x[2], x[3], 1e-6, {x[4], x[5]}))},
      {"rms_norm_forward",
       {h({4, 3, 8}), f({12}), h({4, 3, 8}), h({8})},
       CALL(b.rms_norm_forward(x[0], x[1], x[2], x[3], 1e-6))},
      {"rms_norm_backward",
       {h({4, 8}), f({8}), h({4, 8}), h({4, 8}), h({8}), f({4}), h({4, 8}), i({4}), i({8})},
       CALL(b.rms_norm_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], {x[7], x[8]}))},
      {"rms_norm_partial", {f({4}), h({4, 8})}, CALL(b.rms_norm_partial(x[0], x[1])), {{1, 1}}},
      {"rms_norm_merged",
       {h({4, 8}), f({4}), h({4, 8}), h({8}), f({4})},
       CALL(b.rms_norm_merged(x[0], x[1], x[2], x[3], x[4], 16, 1e-6))},
      {"rms_norm_backward_partial",
       {f({4}), h({4, 8}), h({4, 8}), h({8})},
       CALL(b.rms_norm_backward_partial(x[0], x[1], x[2], x[3]))},
      {"rms_norm_backward_merged",
       {h({4, 8}), f({8}), h({4, 8}), h({4, 8}), h({8}), f({4}), f({4})},
       CALL(b.rms_norm_backward_merged(x[0], x[1], x[2], x[3], x[4], x[5], x[6], 16))},
      {"layer_norm_forward",
       {h({4, 8}), f({4}), f({4}), h({4, 8}), h({8}), h({8}), i({4}), i({8})},
       CALL(b.layer_norm_forward(x[0], x[1], x[2], x[3], x[4], x[5], 1e-6, {x[6], x[7]}))},
      {"layer_norm_backward",
       {h({4, 8}), f({8}), f({8}), h({4, 8}), h({4, 8}), h({8}), f({4}), f({4}), h({4, 8}), i({4}),
        i({8})},
       CALL(b.layer_norm_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8],
                                  {x[9], x[10]}))},

      {"attention_forward",
       {h({2, 5, 6, 10}), f({2, 6, 5}), h({2, 5, 6, 8}), h({2, 7, 3, 8}), h({2, 7, 3, 10}), f({6}),
        i({2, 5})},
       CALL(b.attention_forward(x[0], x[1], x[2], x[3], x[4],
                                {.alibi_slopes = x[5], .document_start = x[6]}))},
      {"attention_backward",
       {h({2, 5, 6, 8}), h({2, 7, 3, 8}), h({2, 7, 3, 10}), h({2, 5, 6, 10}), h({2, 5, 6, 10}),
        f({2, 6, 5}), h({2, 5, 6, 8}), h({2, 7, 3, 8}), h({2, 7, 3, 10})},
       CALL(b.attention_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], {}))},
      {"attention_merge",
       {f({2, 5, 6, 8}), f({2, 6, 5}), h({2, 5, 6, 8}), f({2, 6, 5})},
       CALL(b.attention_merge(x[0], x[1], x[2], x[3]))},
      {"rope",
       {h({4, 3, 8}), f({9, 8}), i({4})},
       CALL(b.rope(x[0], x[1], x[2], true)),
       {{0, 1}, {1, 0}}},
      {"rope_backward",
       {h({4, 24}), f({9, 8}), i({4}), i({4}), i({24})},
       CALL(b.rope_backward(x[0], x[1], x[2], 2, {x[3], x[4]})),
       {{1, 0}}},
      {"sum_heads", {h({4, 8}), h({4, 3, 8})}, CALL(b.sum_heads(x[0], x[1])), {{1, 1}}},
      {"paged_attention",
       {h({4, 6, 10}), h({4, 6, 8}), h({9, 16, 3, 8}), h({9, 16, 3, 10}), f({6}), i({2, 5}),
        i({4, 4})},
       CALL(b.paged_attention(x[0], x[1], x[2], x[3],
                              {.alibi_slopes = x[4], .pages = x[5], .tiles = x[6]})),
       {{5, 0}, {5, 1}, {6, 0}}},
      {"rope_store",
       {h({32, 3, 8}), h({32, 3, 8}), h({4, 6, 8}), h({4, 3, 8}), h({4, 3, 8}), i({4}), f({9, 8}),
        i({4})},
       CALL(b.rope_store(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7])),
       {{2, 1}, {6, 0}}},

      {"retention_forward",
       {h({2, 1, 3, 10}), h({2, 1, 3, 8}), h({2, 1, 3, 8}), h({2, 1, 3, 10}), f({2, 3, 8, 10}),
        f({3})},
       CALL(b.retention_forward(x[0], x[1], x[2], x[3], x[4], {}, {.decays = x[5]}))},
      {"retention_backward",
       {h({2, 1, 3, 8}), h({2, 1, 3, 8}), h({2, 1, 3, 10}), h({2, 1, 3, 10}), h({2, 1, 3, 8}),
        h({2, 1, 3, 8}), h({2, 1, 3, 10}), f({2, 3, 8, 10}), f({2, 3, 8, 10}), f({3})},
       CALL(b.retention_backward(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8],
                                 at(DType::U8, {1 << 16}), {.decays = x[9]}))},
      {"retention_state",
       {f({2, 3, 8, 10}), h({2, 1, 3, 8}), h({2, 1, 3, 10}), f({3})},
       CALL(b.retention_state(x[0], x[1], x[2], {}, {.decays = x[3]}))},
      {"retention_state_backward",
       {f({2, 3, 8, 10}), h({2, 1, 3, 8}), h({2, 1, 3, 10}), f({3})},
       CALL(b.retention_state_backward(x[0], x[1], x[2], at(DType::U8, {1 << 16}),
                                       {.decays = x[3]}))},
      {"retention_decay",
       {f({2, 3, 8, 10}), f({3})},
       CALL(b.retention_decay(x[0], 5, {.decays = x[1]})),
       {{0, 0}, {0, 2}, {0, 3}},
       {0}},
      {"retention_step",
       {h({4, 3, 10}), f({9, 3, 8, 10}), h({4, 3, 8}), h({4, 3, 8}), h({4, 3, 10}), i({4}), i({4}),
        f({3})},
       CALL(b.retention_step(x[0], x[1], x[2], x[3], x[4], x[5], x[6], {.decays = x[7]})),
       {{1, 0}}},
      {"gated_norm_forward",
       {h({4, 8}), f({4}), h({4, 8}), h({4, 8})},
       CALL(b.gated_norm_forward(x[0], x[1], x[2], x[3], 1e-6))},
      {"gated_norm_backward",
       {h({4, 8}), h({4, 8}), h({4, 8}), h({4, 8}), h({4, 8}), f({4})},
       CALL(b.gated_norm_backward(x[0], x[1], x[2], x[3], x[4], x[5]))},

      {"route",
       {i({4, 2}), f({4, 2}), f({4, 6}), f({6})},
       CALL(b.route(x[0], x[1], x[2], x[3], {}))},
      {"route_backward",
       {h({4, 6}), f({4, 2}), i({4, 2}), f({4, 6}), f({2, 6})},
       CALL(b.route_backward(x[0], x[1], x[2], x[3], {}, {.balance = x[4]}))},
      {"route_statistics",
       {f({2, 6}), f({2, 6}), f({1}), i({4, 2}), f({4, 6})},
       CALL(b.route_statistics(x[0], x[1], x[2], x[3], x[4], {})),
       {{3, 1}}},
      {"balance_loss",
       {f({1}), f({2, 6}), f({2, 6}), f({2, 6})},
       CALL(b.balance_loss(x[0], x[1], x[2], x[3], 1, 1))},
      {"order_choices",
       {i({8}), i({4}), i({4, 2}), i({4, 2})},
       CALL(b.order_choices({.rows = x[0], .offsets = x[1], .choices = 2}, x[2], x[3], 0)),
       {{0, 0}, {0, kShape}, {1, 0}, {1, kShape}}},
      {"limit_choices",
       {i({4, 2}), f({1}), i({4, 2})},
       CALL(b.limit_choices(x[0], x[1], x[2], {.length = 2, .experts = 6, .capacity = 1})),
       {},
       {1}},
      {"find_visits",
       {i({4, 3}), i({4, 2})},
       CALL(b.find_visits(x[0], x[1], {})),
       {{0, 1}, {1, 1}}},
      {"gather_rows",
       {h({8, 16}), h({4, 16}), i({8}), i({4})},
       CALL(b.gather_rows(x[0], x[1], {.rows = x[2], .offsets = x[3], .choices = 2})),
       {{0, 0}, {1, 0}, {2, 0}, {2, kShape}, {3, 0}, {3, kShape}}},
      {"grouped_matmul",
       {h({8, 16}), h({4, 10}), h({3, 10, 16}), i({8}), i({4})},
       CALL(b.grouped_matmul(x[0], x[1], x[2], {.rows = x[3], .offsets = x[4], .choices = 2},
                             {.tokens_a = true})),
       {{0, 0}, {1, 0}}},
      {"grouped_matmul_fp8",
       {h({8, 16}), at(DType::F8, {4, 32}), f({4}), at(DType::F8, {48, 32}), f({48}), i({8}),
        i({4})},
       CALL(b.grouped_matmul_fp8(x[0], {x[1], x[2]}, {x[3], x[4]},
                                 {.rows = x[5], .offsets = x[6], .choices = 2},
                                 {.tokens_a = true})),
       {{0, 0}},
       {0}},
      {"grouped_weight_gradient",
       {f({3, 10, 16}), h({8, 10}), h({4, 16}), i({8}), i({4})},
       CALL(b.grouped_weight_gradient(x[0], x[1], x[2],
                                      {.rows = x[3], .offsets = x[4], .choices = 2},
                                      {.tokens_b = true, .accumulate = true})),
       {{1, 0}, {2, 0}}},
      {"expert_swiglu_forward",
       {h({8, 16}), h({8, 32}), f({4, 2}), i({8}), i({4})},
       CALL(b.expert_swiglu_forward(x[0], x[1], x[2],
                                    {.rows = x[3], .offsets = x[4], .choices = 2})),
       {{2, 0}, {4, 0}, {4, kShape}}},
      {"expert_swiglu_backward",
       {h({8, 32}), f({4, 2}), h({8, 16}), h({8, 32}), f({4, 2}), i({8}), i({4})},
       CALL(b.expert_swiglu_backward(x[0], x[1], x[2], x[3], x[4],
                                     {.rows = x[5], .offsets = x[6], .choices = 2})),
       {{6, 0}, {6, kShape}}},
      {"combine_rows",
       {h({4, 16}), h({8, 16}), i({4, 2}), h({4, 16})},
       CALL(b.combine_rows(x[0], x[1], x[2], x[3])),
       {{1, 0}, {2, 1}}},

      {"draw", {h({4, 8})}, CALL(b.draw(x[0], {})), {{0, 0}, {0, 1}}, {0}},
      {"copy", {h({4, 8}), f({4, 8})}, CALL(b.copy(x[0], x[1])), {}, {0, 1}},
      {"add", {h({4, 8}), h({4, 8})}, CALL(b.add(x[0], x[1]))},
      {"swiglu_forward",
       {h({4, 8}), h({4, 16}), i({4}), i({8})},
       CALL(b.swiglu_forward(x[0], x[1], {x[2], x[3]}))},
      {"swiglu_backward",
       {h({4, 16}), h({4, 8}), h({4, 16}), i({4}), i({16})},
       CALL(b.swiglu_backward(x[0], x[1], x[2], {x[3], x[4]}))},
      {"gelu_forward",
       {h({4, 8}), h({4, 8}), i({4}), i({8})},
       CALL(b.gelu_forward(x[0], x[1], {x[2], x[3]}))},
      {"gelu_backward",
       {h({4, 8}), h({4, 8}), h({4, 8}), i({4}), i({8})},
       CALL(b.gelu_backward(x[0], x[1], x[2], {x[3], x[4]}))},
      {"dropout",
       {h({4, 8}), h({4, 8}), i({4}), h({4, 8})},
       CALL(b.dropout(x[0], x[1], {.probability = 0.5, .rows = x[2]}, x[3]))},

      {"embedding_forward",
       {h({4, 8}), i({4}), h({9, 8})},
       CALL(b.embedding_forward(x[0], x[1], x[2], false)),
       {{2, 0}}},
      {"embedding_backward",
       {f({9, 8}), i({4}), h({4, 8})},
       CALL(b.embedding_backward(x[0], x[1], x[2])),
       {{0, 0}}},
      {"scatter_rows",
       {h({9, 3, 8}), h({4, 3, 8}), i({4})},
       CALL(b.scatter_rows(x[0], x[1], x[2])),
       {{0, 0}}},
      {"read_logits",
       {f({4, 2}), i({4, 2}), f({4}), f({4}), h({4, 9}), i({4})},
       CALL(b.read_logits(x[0], x[1], x[2], x[3], x[4], x[5], 0)),
       {{4, 1}}},
      {"cross_entropy",
       {f({4}), h({4, 9}), i({4}), f({4}), f({4}), f({4})},
       CALL(b.cross_entropy(x[0], x[1], x[2],
                            {.weights = x[3], .squared_log_z = x[4], .smallest_losses = x[5]})),
       {{1, 1}}},
      {"cross_entropy_partial",
       {f({4, 3}), h({4, 9}), i({4})},
       CALL(b.cross_entropy_partial(x[0], x[1], x[2], 0)),
       {{1, 1}}},
      {"cross_entropy_merged",
       {f({4}), h({4, 9}), i({4}), f({2, 4, 3})},
       CALL(b.cross_entropy_merged(x[0], x[1], x[2], x[3], 0, {})),
       {{1, 1}, {3, 0}}},
      {"range_sums",
       {f({4}), f({64}), i({4, 2})},
       CALL(b.range_sums(x[0], x[1], x[2])),
       {{1, 0}, {1, kShape}}},
      {"preference_loss",
       {f({64}), f({4}), f({6}), f({6}), i({6, 2})},
       CALL(b.preference_loss(x[0], x[1], x[2], x[3], x[4], {})),
       {{0, 0}, {0, kShape}}},

      {"sum", {f({1}), h({4, 8})}, CALL(b.sum(x[0], x[1])), {{1, 0}, {1, 1}, {1, kShape}}},
      {"squared_norm",
       {f({1}), h({4, 8})},
       CALL(b.squared_norm(x[0], x[1])),
       {{1, 0}, {1, 1}, {1, kShape}}},
      {"clip_scale", {f({1}), f({1}), f({1})}, CALL(b.clip_scale(x[0], x[1], {.loss = x[2]}))},
      {"adamw",
       {h({64}), f({64}), at(DType::BF16, {64}), at(DType::BF16, {64}), f({64}), f({1})},
       CALL(b.adamw(x[0], x[1], x[2], x[3], x[4], x[5], {}))},
      {"momentum",
       {h({64}), at(DType::BF16, {64}), f({64}), f({1})},
       CALL(b.momentum(x[0], x[1], x[2], x[3], {}))},
      {"divide_by_norms",
       {h({3, 4, 8}), f({3})},
       CALL(b.divide_by_norms(x[0], x[1], 1e-6)),
       {{0, 1}, {0, 2}}},
      {"descend",
       {h({64}), f({64}), f({64}), f({1})},
       CALL(b.descend(x[0], x[1], x[2], x[3], 1, 1)),
       {},
       {2}},
      {"moving_average", {f({64}), f({64}), f({1})}, CALL(b.moving_average(x[0], x[1], 1, x[2]))},

  };
  return all;
}

#undef CALL

TEST(Operations, EachIsOneEntryOfSimAndOneSpanUnderItsName) {
  OperationTrace operations;
  Trace trace;
  const auto backend = make_traced_backend(std::make_unique<SimBackend>(operations), trace);
  trace.begin();
  for (const Call& call : calls()) call.call(*backend, call.operands);
  trace.end();
  const auto spans = trace.take();
  ASSERT_EQ(spans.size(), calls().size());
  ASSERT_EQ(operations.operations.size(), calls().size());
  std::set<std::string> shapes, names;
  for (std::size_t k = 0; k < spans.size(); ++k) {
    const std::string& name = calls()[k].operation;
    names.insert(name);
    if (spans[k].name != name) shapes.insert(spans[k].name);
    EXPECT_TRUE(spans[k].name.starts_with(name)) << spans[k].name;
    EXPECT_EQ(operations.operations[k].name, name);
    EXPECT_EQ(spans[k].operation, static_cast<std::int64_t>(k + 1));
    EXPECT_EQ(spans[k].bytes, static_cast<std::int64_t>(operations.operations[k].bytes));
    EXPECT_EQ(spans[k].flops, operations.operations[k].flops);
    EXPECT_EQ(spans[k].lane, "compute");
    EXPECT_EQ(spans[k].kind, SpanKind::Operation);
  }
  for (const char* name :
       {"matmul 3 of 4x16x8 a^T + residual", "matmul_fp8 16x32x48 + bias + residual",
        "attention_forward 2x6x5x8 to 7 keys causal alibi",
        "attention_backward 2x6x5x8 to 7 keys causal"})
    EXPECT_TRUE(shapes.contains(name)) << name;
#define KINTSUGI_OPERATION(name, parameters, ...) EXPECT_TRUE(names.contains(#name)) << #name;
#include "backend/operations.def"
}

// What an operand must not be instead of itself: of another type, with a dimension more or less, or
// with another extent.
Operands wrong_forms(const Call& call, std::size_t k) {
  const auto any_extent = [&](int dimension) {
    return std::ranges::count(call.any_extent, std::pair(k, dimension)) > 0;
  };
  const Tensor& x = call.operands[k];
  const Shape shape = x.shape();
  Operands wrong = {at(DType::U8, shape)};
  if (std::ranges::count(call.any_number, k) == 0) wrong.push_back(at(DType::F64, shape));
  Shape ranked = shape.rank() == kMaxRank ? Shape{} : Shape{2};
  for (int d = shape.rank() == kMaxRank ? 1 : 0; d < shape.rank(); ++d) ranked.append(shape[d]);
  if (!any_extent(kShape)) wrong.push_back(at(x.dtype(), ranked));
  for (int d = 0; d < shape.rank(); ++d)
    if (!any_extent(d)) {
      Shape longer = shape;
      ++longer[d];
      wrong.push_back(at(x.dtype(), longer));
    }
  return wrong;
}

// No backend sees an operand of a wrong type, rank or extent, traced or not.
TEST(Operations, RejectWrongOperandsBeforeABackendSeesThem) {
  for (const bool traced : {false, true}) {
    OperationTrace operations;
    Trace trace;
    std::unique_ptr<Backend> backend = std::make_unique<SimBackend>(operations);
    if (traced) backend = make_traced_backend(std::move(backend), trace);
    for (const Call& call : calls())
      for (std::size_t k = 0; k < call.operands.size(); ++k)
        for (const Tensor& wrong : wrong_forms(call, k)) {
          Operands operands = call.operands;
          operands[k] = wrong;
          EXPECT_THROW(call.call(*backend, operands), Failure)
              << call.operation << ", operand " << k << " as " << to_string(wrong.dtype()) << " "
              << to_string(wrong.shape());
          EXPECT_TRUE(operations.operations.empty()) << call.operation;
          operations.operations.clear();
        }
  }
}

// What nothing but its own operation fixes: rows with gaps where they must be adjacent, and
// options.
TEST(Operations, RejectGapsAndOptions) {
  OperationTrace operations;
  SimBackend backend(operations);
  const Tensor gaps = h({4, 9}).part(1, 0, 8), x = h({4, 8});
  EXPECT_THROW(backend.add(x, gaps), Failure);
  EXPECT_THROW(backend.gelu_forward(gaps, x), Failure);
  EXPECT_THROW(backend.sum(f({1}), gaps), Failure);
  EXPECT_THROW(backend.route(i({4, 3}).part(1, 0, 2), f({4, 2}), f({4, 6}), {}, {}), Failure);
  EXPECT_THROW(backend.route(i({4, 2}), f({4, 2}), f({4, 6}), {}, {.groups = 4}), Failure);
  EXPECT_THROW(backend.route(i({4, 4}), f({4, 4}), f({4, 6}), {}, {.groups = 2}), Failure);
  EXPECT_THROW(backend.dropout(x, x, {.probability = 1}), Failure);
  EXPECT_THROW(backend.dropout(x, x, {.first_column = 4, .width = 8}), Failure);
  EXPECT_THROW(backend.matmul(x, h({4, 4}), h({4, 8}), {.accumulate = true, .bias = h({8})}),
               Failure);
  EXPECT_THROW(backend.matmul(x, h({4, 4}), h({4, 8}), {.gelu = x, .gelu_input = x}), Failure);
  EXPECT_THROW(backend.rms_norm_merged(x, f({4}), x, h({8}), f({4}), 7, 1e-6), Failure);
  EXPECT_THROW(backend.limit_choices(i({4, 2}), {}, i({4, 2}), {.length = 3}), Failure);
  EXPECT_THROW(backend.retention_forward(h({2, 5, 3, 8}), h({2, 5, 3, 8}), h({2, 5, 3, 8}),
                                         h({2, 5, 3, 8}), {}, {}, {.decays = f({3})}),
               Failure)
      << "several tokens need a workspace";
  EXPECT_TRUE(operations.operations.empty());
}

// The sim backend counts only the (query, key) pairs that the mask keeps.
TEST(Operations, SimCountsAttentionInWindows) {
  const TokenPositions together{}, behind{.first = 9}, chunks{3, 4, 20}, others{7, 5, 12};
  for (const TokenPositions& queries : {together, behind, chunks})
    for (const TokenPositions& keys : {together, chunks, others})
      for (const std::int64_t window : {0, 1, 2, 5, 8, 13, 100}) {
        OperationTrace trace;
        SimBackend backend(trace);
        const auto tensor = [](std::int64_t tokens, std::int64_t heads) {
          return Tensor(nullptr, DType::F32, {2, tokens, heads, 8});
        };
        backend.attention_forward(
            tensor(11, 6), Tensor(nullptr, DType::F32, {2, 6, 11}), tensor(11, 6), tensor(9, 3),
            tensor(9, 3), {.window = window, .key_positions = keys, .query_positions = queries});
        std::int64_t pairs = 0;
        for (std::int64_t i = 0; i < 11; ++i)
          for (std::int64_t j = 0; j < 9; ++j) {
            const std::int64_t distance = queries.of(i) - keys.of(j);
            pairs += distance >= 0 && (window == 0 || distance < window);
          }
        EXPECT_EQ(trace.flops(), 2.0 * 2 * 8 * 2 * 6 * static_cast<double>(pairs))
            << queries.first << " " << keys.first << " " << window;
      }
}

}  // namespace
}  // namespace kintsugi
