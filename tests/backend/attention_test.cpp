#include "backend/attention_reference.h"

namespace kintsugi {
namespace {

// The memory layout of q, k and v.
enum class Packing {
  Separate,  // three buffers
  Joined,    // one buffer, rows [q | k | v]
  Odd,       // the same with one more element per row, so that rows start at any address
  PerHead,   // one buffer, rows of heads [q k v]; as many key heads as heads
  Cache,     // k and v are the first rows of longer buffers
};

struct AttentionCase : AttentionSizes {
  Packing packing = Packing::Separate;
  bool alibi = false;
  bool documents = false;
  std::int64_t window = 0;
  std::int64_t value_dim = dim;
};

std::string describe(const AttentionCase& c) {
  return fmt::format(
      "batch {} queries {} keys {} heads {}/{} dim {} packing {} alibi {} documents {} window {} "
      "values {}",
      c.batch, c.queries, c.keys, c.heads, c.kv_heads, c.dim, static_cast<int>(c.packing), c.alibi,
      c.documents, c.window, c.value_dim);
}

class AttentionTest : public OperationTest {
 protected:
  struct Packed {
    Tensor q, k, v;
  };
  Packed pack(const AttentionCase& c) {
    const auto keys = [&](std::int64_t count, std::int64_t dim) {
      return buffer(type(), {c.batch, count, c.kv_heads, dim}).part(1, 0, c.keys);
    };
    if (c.packing == Packing::Separate || c.packing == Packing::Cache) {
      const std::int64_t count = c.keys + (c.packing == Packing::Cache ? 11 : 0);
      return {buffer(type(), {c.batch, c.queries, c.heads, c.dim}), keys(count, c.dim),
              keys(count, c.value_dim)};
    }
    if (c.packing == Packing::PerHead) {
      const Tensor all = buffer(type(), {c.batch, c.keys, c.heads, 2 * c.dim + c.value_dim});
      return {all.part(3, 0, c.dim), all.part(3, c.dim, c.dim),
              all.part(3, 2 * c.dim, c.value_dim)};
    }
    const std::int64_t q_width = c.heads * c.dim, k_width = c.kv_heads * c.dim,
                       v_width = c.kv_heads * c.value_dim;
    const Tensor all = buffer(
        type(), {c.batch, c.keys, q_width + k_width + v_width + (c.packing == Packing::Odd)});
    return {all.part(2, 0, q_width).split_last(c.dim),
            all.part(2, q_width, k_width).split_last(c.dim),
            all.part(2, q_width + k_width, v_width).split_last(c.value_dim)};
  }

  AttentionInputs inputs(const AttentionCase& c, double deviation = 1.0) {
    AttentionInputs x;
    x.q = activations(c.batch * c.queries * c.heads * c.dim, deviation);
    x.k = activations(c.batch * c.keys * c.kv_heads * c.dim);
    x.v = activations(c.batch * c.keys * c.kv_heads * c.value_dim);
    x.dout = activations(c.batch * c.queries * c.heads * c.value_dim);
    x.value_dim = c.value_dim;
    x.scale = 1.3 / std::sqrt(static_cast<double>(c.dim));
    x.window = c.window;
    if (c.alibi) x.slopes = magnitudes(rounded(normal(c.heads, 0.1), DType::F32));
    if (c.documents)
      // The first document has b + 7 tokens; each next one is about three times longer.
      for (std::int64_t b = 0; b < c.batch; ++b) {
        std::int32_t start = 0, length = static_cast<std::int32_t>(b) + 7;
        for (std::int32_t token = 0; token < c.keys; ++token) {
          if (token == start + length) start = token, length = length * 3 + 1;
          if (token >= c.keys - c.queries) x.starts.push_back(start);
        }
      }
    return x;
  }

  AttentionOptions options(const AttentionCase& c, const AttentionInputs& x) {
    AttentionOptions o{.scale = x.scale, .window = c.window};
    if (c.alibi) o.alibi_slopes = in(x.slopes, DType::F32, {c.heads});
    if (c.documents) o.document_start = in(x.starts, {c.batch, c.queries});
    return o;
  }

  void check(const AttentionCase& c, double deviation = 1.0) {
    SCOPED_TRACE(describe(c));
    const AttentionInputs x = inputs(c, deviation);
    const AttentionOutputs expected = attention_reference(c, x);
    const Packed from = pack(c), gradient = pack(c);
    write(from.q, x.q);
    write(from.k, x.k);
    write(from.v, x.v);
    const AttentionOptions o = options(c, x);
    // As in a layer: each row has all heads side by side.
    const Tensor out_tensor =
        allow(buffer(type(), {c.batch, c.queries, c.heads * c.value_dim}).split_last(c.value_dim));
    const Tensor lse = out(accumulator(), {c.batch, c.heads, c.queries});
    backend().attention_forward(out_tensor, lse, from.q, from.k, from.v, o);

    // 16-bit kernels also round the probabilities. The error grows with the largest score.
    const double score = std::max(1.0, largest(expected.lse)),
                 root = std::sqrt(static_cast<double>(c.keys));
    const double slack = narrow() ? 4 : 16 * score;
    expect_close("out", read(out_tensor), expected.out, type(), {slack, type(), {largest(x.v)}});
    expect_close("lse", read(lse), expected.lse, accumulator(),
                 {64 + root, accumulator(), {score}});

    allow(gradient.q);
    allow(gradient.k);
    allow(gradient.v);
    const Tensor dout = in(x.dout, type(), {c.batch, c.queries, c.heads, c.value_dim});
    backend().attention_backward(gradient.q, gradient.k, gradient.v, dout, out_tensor, lse, from.q,
                                 from.k, from.v, o);
    // If a query sees only one key, the gradient of its score is a difference of equal numbers of
    // about 1.
    const auto size = [](const Values& gradients) {
      return Values{std::max(1.0, largest(gradients))};
    };
    expect_close("dq", read(gradient.q), expected.dq, type(), {slack, type(), size(expected.dq)});
    expect_close("dk", read(gradient.k), expected.dk, type(), {slack, type(), size(expected.dk)});
    expect_close("dv", read(gradient.v), expected.dv, type(), {slack, type(), size(expected.dv)});
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(AttentionTest);

TEST_P(AttentionTest, SequencesAndHeads) {
  for (const AttentionCase& c :
       {AttentionCase{1, 1, 1, 1, 1, 8}, AttentionCase{3, 2, 2, 2, 2, 20},
        AttentionCase{2, 17, 17, 6, 2, 64}, AttentionCase{1, 64, 64, 6, 1, 80},
        AttentionCase{2, 65, 65, 4, 4, 8}, AttentionCase{1, 130, 130, 6, 2, 20},
        AttentionCase{1, 130, 130, 2, 1, 128}, AttentionCase{1, 67, 67, 3, 3, 64}})
    check(c);
}

TEST_P(AttentionTest, PackedBuffers) {
  check({2, 33, 33, 6, 2, 20, Packing::Joined});
  check({1, 130, 130, 3, 1, 64, Packing::Joined});
  check({1, 35, 35, 2, 1, 16, Packing::Odd});
  check({2, 70, 70, 5, 5, 8, Packing::PerHead, true});
}

// Heads and sequences that end at, before and behind the borders of the tiles of matrix units.
TEST_P(AttentionTest, TileBorders) {
  for (const std::int64_t tokens : {15, 16, 31, 33, 63, 64, 65, 127, 128, 129})
    check({1, tokens, tokens, 1, 1, 16});
  // An emulated GPU of 64 KiB of shared memory has no tiles for longer heads in more than 16 bits.
  const bool long_heads = narrow() || !is_emulated();
  for (const std::int64_t dim : {8, 24, 72, 96, 104, 136, 256})
    if (dim <= 128 || long_heads) check({1, 33, 65, 2, 1, dim});
  check({1, 129, 193, 2, 1, 96, Packing::Cache, true, true, 64});
  check({1, 64, 256, 2, 2, 16, Packing::Cache, false, false, 128});
  if (long_heads) check({1, 65, 65, 4, 1, 256, Packing::Joined, true, true, 33});
}

// Latent attention has longer keys than values.
TEST_P(AttentionTest, ValuesOfAnotherSize) {
  check({2, 17, 17, 2, 2, 10, Packing::Separate, false, false, 0, 8});
  check({2, 65, 65, 4, 2, 24, Packing::Joined, false, true, 0, 16});
  check({1, 35, 35, 2, 1, 16, Packing::Odd, false, false, 0, 40});
  check({1, 33, 65, 2, 2, 64, Packing::Cache, true, false, 20, 96});
  check({1, 70, 70, 3, 3, 48, Packing::PerHead, false, false, 0, 32});
  if (narrow() || !is_emulated())
    check({1, 65, 65, 2, 2, 192, Packing::Separate, false, false, 0, 128});
}

TEST_P(AttentionTest, Alibi) {
  check({2, 17, 17, 6, 6, 20, Packing::Separate, true});
  check({1, 130, 130, 6, 2, 64, Packing::Joined, true});
}

TEST_P(AttentionTest, DocumentsDoNotSeeEachOther) {
  check({3, 17, 17, 2, 2, 8, Packing::Separate, false, true});
  check({2, 130, 130, 6, 2, 20, Packing::Joined, false, true});
  check({2, 200, 200, 2, 1, 8, Packing::Joined, true, true});
}

// Windows of one key, within a tile, over several tiles, and longer than the sequence.
TEST_P(AttentionTest, Windows) {
  for (const std::int64_t window : {1, 2, 7, 63, 64, 65, 100, 129, 130, 131, 1000}) {
    if (is_emulated() && window % 3 != 1) continue;
    check({2, 130, 130, 4, 2, 20, Packing::Joined, false, false, window});
    check({1, 17, 17, 2, 1, 8, Packing::Separate, true, false, window});
  }
  check({2, 333, 333, 2, 1, 8, Packing::Joined, true, true, 50});
  check({2, 200, 200, 6, 2, 64, Packing::Joined, false, true, 90});
  check({2, 5, 170, 6, 1, 8, Packing::Cache, true, true, 3});
  check({1, 66, 231, 2, 2, 80, Packing::Cache, false, false, 70});
  check({3, 1, 137, 6, 2, 64, Packing::Cache, false, false, 20});
}

TEST_P(AttentionTest, FewerQueriesThanKeys) {
  check({3, 1, 37, 6, 2, 64, Packing::Cache});
  check({2, 1, 129, 4, 4, 20, Packing::Cache, true});
  check({2, 5, 70, 6, 1, 8, Packing::Cache, true, true});
  check({1, 66, 131, 2, 2, 80, Packing::Cache});
}

// Scores of hundreds: exponentials overflow unless the largest score is subtracted first.
TEST_P(AttentionTest, LargeScores) {
  const AttentionCase c{1, 70, 70, 2, 2, 64};
  AttentionInputs x = inputs(c, 60.0);
  const AttentionOutputs expected = attention_reference(c, x);
  const Shape shape = {c.batch, c.queries, c.heads, c.dim};
  const Tensor y = out(type(), shape), lse = out(accumulator(), {c.batch, c.heads, c.queries});
  backend().attention_forward(y, lse, in(x.q, type(), shape), in(x.k, type(), shape),
                              in(x.v, type(), shape), options(c, x));
  ASSERT_GT(largest(expected.lse), 150);
  expect_close("lse", read(lse), expected.lse, accumulator(), {64, accumulator()});
  expect_close("out", read(y), expected.out, type(),
               {narrow() ? 4 : 64 * largest(expected.lse), type(), {largest(x.v)}});
}

class AttentionGradientTest : public AttentionTest {};
KINTSUGI_ON_EACH_BACKEND(AttentionGradientTest, {DType::F64});

TEST_P(AttentionGradientTest, MatchesTheForward) {
  for (const AttentionCase& c :
       {AttentionCase{2, 70, 70, 4, 2, 8, Packing::Joined, true, true},
        AttentionCase{1, 9, 67, 3, 1, 20},
        AttentionCase{2, 70, 70, 4, 4, 12, Packing::PerHead, false, true, 0, 20},
        AttentionCase{2, 140, 140, 4, 2, 8, Packing::Joined, true, true, 11},
        AttentionCase{1, 9, 167, 3, 1, 20, Packing::Cache, false, false, 80}}) {
    SCOPED_TRACE(describe(c));
    const AttentionInputs x = inputs(c);
    const Packed from = pack(c), gradient = pack(c);
    write(from.q, x.q);
    write(from.k, x.k);
    write(from.v, x.v);
    const AttentionOptions o = options(c, x);
    const Tensor y = out(type(), {c.batch, c.queries, c.heads, c.value_dim});
    const Tensor lse = out(type(), {c.batch, c.heads, c.queries});
    backend().attention_forward(y, lse, from.q, from.k, from.v, o);
    allow(gradient.q);
    allow(gradient.k);
    allow(gradient.v);
    backend().attention_backward(gradient.q, gradient.k, gradient.v,
                                 in(x.dout, type(), {c.batch, c.queries, c.heads, c.value_dim}), y,
                                 lse, from.q, from.k, from.v, o);
    const auto check_slope = [&](Tensor operand, const Values& values, Tensor found) {
      const Values direction = normal(operand.elements());
      const auto forward = [&](const Values& moved) {
        write(operand, moved);
        backend().attention_forward(y, lse, from.q, from.k, from.v, o);
        return read(y);
      };
      EXPECT_NEAR(slope_along(forward, values, direction, x.dout), dot(read(found), direction),
                  1e-7);
      write(operand, values);
    };
    check_slope(from.q, x.q, gradient.q);
    check_slope(from.k, x.k, gradient.k);
    check_slope(from.v, x.v, gradient.v);
    finish();
  }
}

}  // namespace
}  // namespace kintsugi
