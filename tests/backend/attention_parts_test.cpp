// Attention over ranges of queries and keys, merged, equals attention over the whole sequence.
#include "backend/attention_reference.h"

namespace kintsugi {
namespace {

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

struct Case {
  std::int64_t batch, length, heads, kv_heads, dim;
  std::vector<std::int64_t> query_bounds, key_bounds;  // inner boundaries of the ranges
  bool alibi = false, documents = false;
  std::int64_t window = 0;
  bool contiguous_sums = false;  // the log-sum-exp of a range, as libraries need it
};

std::vector<Range> ranges(const std::vector<std::int64_t>& bounds, std::int64_t length) {
  std::vector<Range> result;
  std::int64_t begin = 0;
  for (const std::int64_t bound : bounds) result.push_back({begin, bound}), begin = bound;
  result.push_back({begin, length});
  return result;
}

class AttentionPartsTest : public OperationTest {
 protected:
  AttentionInputs inputs(const Case& c) {
    AttentionInputs x;
    x.q = activations(c.batch * c.length * c.heads * c.dim);
    x.dout = activations(c.batch * c.length * c.heads * c.dim);
    x.k = activations(c.batch * c.length * c.kv_heads * c.dim);
    x.v = activations(c.batch * c.length * c.kv_heads * c.dim);
    x.scale = 1.3 / std::sqrt(static_cast<double>(c.dim));
    x.window = c.window;
    if (c.alibi) x.slopes = magnitudes(rounded(normal(c.heads, 0.1), DType::F32));
    for (std::int64_t b = 0; c.documents && b < c.batch; ++b)
      for (std::int64_t start = 0, token = 0; token < c.length; ++token) {
        if ((token + b) % 11 == 0 || (token + b) % 29 == 28) start = token;
        x.starts.push_back(static_cast<std::int32_t>(start));
      }
    return x;
  }

  // The options for one range of queries and one range of keys.
  AttentionOptions options(const Case& c, const AttentionInputs& x, Range queries, Range keys) {
    AttentionOptions o{.scale = x.scale,
                       .window = c.window,
                       .key_positions = {.first = keys.begin},
                       .query_positions = TokenPositions{.first = queries.begin}};
    if (c.alibi) o.alibi_slopes = in(x.slopes, DType::F32, {c.heads});
    if (!c.documents) return o;
    Ids starts;  // of all queries; the options get a strided view of them
    for (const std::int32_t start : x.starts)
      starts.push_back(
          static_cast<std::int32_t>(std::clamp<std::int64_t>(start - keys.begin, 0, keys.size())));
    o.document_start = in(starts, {c.batch, c.length}).part(1, queries.begin, queries.size());
    return o;
  }

  static void add(Values& sums, const Values& part) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }

  void check(const Case& c) {
    const AttentionInputs x = inputs(c);
    const AttentionOutputs expected =
        attention_reference({c.batch, c.length, c.length, c.heads, c.kv_heads, c.dim}, x);
    const Shape wide = {c.batch, c.length, c.heads, c.dim},
                narrow_shape = {c.batch, c.length, c.kv_heads, c.dim};
    const Tensor q = in(x.q, type(), wide), k = in(x.k, type(), narrow_shape),
                 v = in(x.v, type(), narrow_shape);
    const Tensor merged = inout(Values(x.q.size(), 0.0), accumulator(), wide);
    const Tensor lse =
        inout(Values(expected.lse.size(), -INFINITY), accumulator(), {c.batch, c.heads, c.length});
    const Tensor part_out = out(type(), wide), part_lse = out(accumulator(), lse.shape());
    const auto key_ranges = ranges(c.key_bounds, c.length);
    const auto query_ranges = ranges(c.query_bounds, c.length);
    for (const Range& queries : query_ranges)
      for (const Range& keys : key_ranges) {
        const auto of = [&](const Tensor& t) { return t.part(1, queries.begin, queries.size()); };
        const Tensor some_lse = part_lse.part(2, queries.begin, queries.size());
        const Tensor sums = c.contiguous_sums ? out(accumulator(), some_lse.shape()) : some_lse;
        backend().attention_forward(of(part_out), sums, of(q), k.part(1, keys.begin, keys.size()),
                                    v.part(1, keys.begin, keys.size()),
                                    options(c, x, queries, keys));
        if (c.contiguous_sums) backend().copy(some_lse.flatten_first(), sums.flatten_first());
        expect_nothing_where_nothing_is_seen(c, x, queries, keys, part_out, part_lse);
        backend().attention_merge(of(merged), lse.part(2, queries.begin, queries.size()),
                                  of(part_out), some_lse);
      }
    // Each range rounds its result once; the weights add up to 1. Large scores lose digits.
    const double slack = narrow() ? 4 : 8 * std::max(8.0, largest(expected.lse));
    expect_close("out", read(merged), expected.out, accumulator(), {slack, type(), {largest(x.v)}});
    expect_close("lse", read(lse), expected.lse, accumulator(),
                 {128, accumulator(), {std::max(1.0, largest(expected.lse))}});

    const Tensor rounded_out = out(type(), wide), dout = in(x.dout, type(), wide);
    backend().copy(rounded_out, merged);
    Values dq(x.q.size(), 0.0), dk(x.k.size(), 0.0), dv(x.k.size(), 0.0);
    for (const Range& queries : query_ranges)
      for (const Range& keys : key_ranges) {
        const auto of = [&](const Tensor& t) { return t.part(1, queries.begin, queries.size()); };
        const auto with = [&](const Tensor& t) { return t.part(1, keys.begin, keys.size()); };
        // Zero outside the range, so that full tensors can be added up.
        const Tensor gq = inout(Values(x.q.size(), 0.0), type(), wide),
                     gk = inout(Values(x.k.size(), 0.0), type(), narrow_shape),
                     gv = inout(Values(x.k.size(), 0.0), type(), narrow_shape);
        Tensor sums = lse.part(2, queries.begin, queries.size());
        if (c.contiguous_sums) {
          const Tensor strided = sums;
          sums = out(accumulator(), strided.shape());
          backend().copy(sums.flatten_first(), strided.flatten_first());
        }
        backend().attention_backward(of(gq), with(gk), with(gv), of(dout), of(rounded_out), sums,
                                     of(q), with(k), with(v), options(c, x, queries, keys));
        add(dq, read(gq));
        add(dk, read(gk));
        add(dv, read(gv));
      }
    const auto size = [](const Values& gradients) {
      return Values{std::max(1.0, largest(gradients))};
    };
    expect_close("dq", dq, expected.dq, type(), {slack, type(), size(expected.dq)});
    expect_close("dk", dk, expected.dk, type(), {slack, type(), size(expected.dk)});
    expect_close("dv", dv, expected.dv, type(), {slack, type(), size(expected.dv)});
    finish();
  }

  void expect_nothing_where_nothing_is_seen(const Case& c, const AttentionInputs& x, Range queries,
                                            Range keys, Tensor part_out, Tensor part_lse) {
    const Values found_lse = read(part_lse), found = read(part_out);
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t i = queries.begin; i < queries.end; ++i) {
        std::int64_t start = c.documents ? x.starts[static_cast<std::size_t>(b * c.length + i)] : 0;
        if (c.window > 0) start = std::max(start, i - c.window + 1);
        const bool seen = std::max(start, keys.begin) < std::min(i + 1, keys.end);
        for (std::int64_t h = 0; h < c.heads; ++h) {
          const auto row = static_cast<std::size_t>((b * c.heads + h) * c.length + i);
          ASSERT_EQ(found_lse[row] == -INFINITY, !seen) << "query " << i << ": " << found_lse[row];
          const auto first = static_cast<std::size_t>(((b * c.length + i) * c.heads + h) * c.dim);
          for (std::size_t d = 0; !seen && d < static_cast<std::size_t>(c.dim); ++d)
            ASSERT_EQ(found[first + d], 0.0);
        }
      }
  }
};
KINTSUGI_ON_EACH_BACKEND(AttentionPartsTest);

TEST_P(AttentionPartsTest, KeysInParts) {
  check({2, 33, 4, 4, 8, {}, {10}});
  check({1, 130, 6, 2, 64, {}, {64, 100}});
  check({2, 70, 4, 1, 20, {}, {1, 2, 69}});
}

TEST_P(AttentionPartsTest, QueriesAndKeysInParts) {
  check({2, 32, 2, 2, 8, {16}, {8, 16, 24}});
  check({1, 130, 6, 2, 64, {3, 65}, {64, 100}});
}

// Blocks of keys that queries see all of, and blocks as in a sequence of their own. As many queries
// as keys, half as many, twice as many; chunks that are no whole tiles.
TEST_P(AttentionPartsTest, BlocksOfARing) {
  check({2, 64, 4, 2, 16, {32}, {16, 32}});
  check({1, 96, 2, 2, 8, {48, 72}, {48}, false, false, 0, true});
  if (is_emulated() || !narrow()) return;
  check({2, 256, 4, 2, 64, {128}, {64, 128}, false, false, 0, true});
  check({1, 384, 6, 2, 128, {128, 256}, {128, 256}, false, false, 0, true});
  check({2, 150, 4, 4, 64, {50, 100}, {50, 100}, false, false, 0, true});
  check({2, 132, 4, 1, 80, {44}, {20, 44}, false, false, 0, true});
  check({2, 256, 4, 2, 64, {128}, {64, 128}, false, true, 0, true});
  check({2, 132, 4, 2, 128, {44}, {44}, false, true, 0, true});
  check({2, 256, 4, 2, 64, {128}, {64, 128}, true, false, 0, true});
  check({1, 256, 4, 2, 64, {128}, {64, 128}, false, false, 100, true});
}

TEST_P(AttentionPartsTest, Alibi) { check({2, 70, 4, 2, 20, {35}, {20, 50}, true}); }

TEST_P(AttentionPartsTest, Documents) {
  check({3, 48, 2, 2, 8, {24}, {12, 24, 36}, false, true});
  check({2, 150, 6, 2, 64, {75}, {70, 110}, true, true});
}

TEST_P(AttentionPartsTest, Windows) {
  for (const std::int64_t window : is_emulated()
                                       ? std::vector<std::int64_t>{5, 64}
                                       : std::vector<std::int64_t>{1, 5, 40, 64, 100, 500})
    check({1, 130, 6, 2, 8, {3, 65}, {64, 100}, false, false, window});
  check({2, 70, 4, 1, 20, {}, {1, 2, 69}, true, false, 30});
  check({2, 150, 6, 2, 64, {75}, {70, 110}, true, true, 20});
}

// Queries and keys in two chunks each, as in context parallelism: queries of chunks 1 and 2 (of
// four) against keys of chunks 0 and 3, and of chunks 1 and 2.
TEST_P(AttentionPartsTest, TwoChunks) {
  constexpr std::int64_t kChunk = 33;
  const AttentionSizes c{2, 2 * kChunk, 2 * kChunk, 4, 2, 8};
  const TokenPositions inner{kChunk, kChunk, 2 * kChunk}, outer{0, kChunk, 3 * kChunk};
  for (const TokenPositions& key_positions : {inner, outer})
    for (const std::int64_t window : {0, 1, 20, 34, 50, 200}) {
      SCOPED_TRACE(fmt::format("keys from {}, window {}", key_positions.first, window));
      const Values q = activations(c.batch * c.queries * c.heads * c.dim),
                   k = activations(c.batch * c.keys * c.kv_heads * c.dim),
                   v = activations(c.batch * c.keys * c.kv_heads * c.dim);
      const Shape wide = {c.batch, c.queries, c.heads, c.dim},
                  narrow_shape = {c.batch, c.keys, c.kv_heads, c.dim};
      const Values slopes = magnitudes(rounded(normal(c.heads, 0.1), DType::F32));
      const AttentionOptions o{.alibi_slopes = in(slopes, DType::F32, {c.heads}),
                               .window = window,
                               .key_positions = key_positions,
                               .query_positions = inner};
      const Tensor y = out(type(), wide), lse = out(accumulator(), {c.batch, c.heads, c.queries});
      backend().attention_forward(y, lse, in(q, type(), wide), in(k, type(), narrow_shape),
                                  in(v, type(), narrow_shape), o);
      const Values found = read(y), found_lse = read(lse);
      for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t i = 0; i < c.queries; ++i)
          for (std::int64_t h = 0; h < c.heads; ++h) {
            double total = 0, sum = 0;  // sum is of the first element of each head
            for (std::int64_t j = 0; j < c.keys; ++j) {
              const std::int64_t distance = inner.of(i) - key_positions.of(j);
              if (distance < 0 || (window > 0 && distance >= window)) continue;
              const auto query = static_cast<std::size_t>(((b * c.queries + i) * c.heads + h) * 8),
                         key = static_cast<std::size_t>(((b * c.keys + j) * 2 + h / 2) * 8);
              double score =
                  slopes[static_cast<std::size_t>(h)] * static_cast<double>(key_positions.of(j));
              for (std::size_t d = 0; d < 8; ++d) score += q[query + d] * k[key + d];
              total += std::exp(score);
              sum += std::exp(score) * v[key];
            }
            const double actual =
                found[static_cast<std::size_t>(((b * c.queries + i) * c.heads + h) * 8)];
            const double row =
                found_lse[static_cast<std::size_t>((b * c.heads + h) * c.queries + i)];
            if (total == 0) {
              ASSERT_EQ(actual, 0.0);
              ASSERT_EQ(row, -INFINITY);
            } else {
              ASSERT_NEAR(actual, sum / total, narrow() ? 0.05 : 1e-4);
              ASSERT_NEAR(row, std::log(total), 1e-4);
            }
          }
      finish();
    }
}

// All keys are before the queries, and there are fewer keys than queries.
TEST_P(AttentionPartsTest, MoreQueriesThanKeys) {
  const AttentionSizes c{2, 70, 9, 4, 2, 20};
  AttentionInputs x;
  x.q = activations(c.batch * c.queries * c.heads * c.dim);
  x.k = activations(c.batch * c.keys * c.kv_heads * c.dim);
  x.v = activations(c.batch * c.keys * c.kv_heads * c.dim);
  // Each query must give the same result as alone, as the last query of a sequence.
  const Shape wide = {c.batch, c.queries, c.heads, c.dim};
  const Tensor y = out(type(), wide), lse = out(accumulator(), {c.batch, c.heads, c.queries});
  backend().attention_forward(y, lse, in(x.q, type(), wide),
                              in(x.k, type(), {c.batch, c.keys, c.kv_heads, c.dim}),
                              in(x.v, type(), {c.batch, c.keys, c.kv_heads, c.dim}),
                              {.query_positions = TokenPositions{.first = c.keys}});
  const Values found = read(y);
  const auto row = static_cast<std::size_t>(c.heads * c.dim);
  for (std::int64_t i = 0; i < c.queries; ++i) {
    AttentionInputs one = x;
    one.q.clear();
    Values actual;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      const auto at =
          static_cast<std::ptrdiff_t>(static_cast<std::size_t>(b * c.queries + i) * row);
      one.q.insert(one.q.end(), x.q.begin() + at,
                   x.q.begin() + at + static_cast<std::ptrdiff_t>(row));
      actual.insert(actual.end(), found.begin() + at,
                    found.begin() + at + static_cast<std::ptrdiff_t>(row));
    }
    one.dout = Values(one.q.size(), 0.0);
    const AttentionOutputs expected =
        attention_reference({c.batch, 1, c.keys, c.heads, c.kv_heads, c.dim}, one);
    expect_close("out", actual, expected.out, type(),
                 {narrow() ? 4.0 : 256.0, type(), {largest(x.v)}});
  }
}

// A sum in the precision of its parts is rounded once more.
TEST_P(AttentionPartsTest, MergingWithoutMorePrecision) {
  for (const std::int64_t dim : {8, 20, 130}) {
    const std::int64_t rows = 2 * 5 * 3;
    const Values a = activations(rows * dim), b = activations(rows * dim),
                 sums = rounded(normal(rows), accumulator()),
                 others = rounded(normal(rows), accumulator());
    const Tensor merged = inout(a, type(), {2, 5, 3, dim}),
                 lse = inout(sums, accumulator(), {2, 3, 5});
    backend().attention_merge(merged, lse, in(b, type(), {2, 5, 3, dim}),
                              in(others, accumulator(), {2, 3, 5}));
    Values expected, expected_sums;
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t query = 0; query < 5; ++query)
        for (std::int64_t head = 0; head < 3; ++head) {
          const auto row = static_cast<std::size_t>((i * 3 + head) * 5 + query),
                     first = static_cast<std::size_t>(((i * 5 + query) * 3 + head) * dim);
          const double x = std::exp(sums[row]), y = std::exp(others[row]);
          for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d)
            expected.push_back((x * a[first + d] + y * b[first + d]) / (x + y));
        }
    for (std::size_t i = 0; i < sums.size(); ++i)
      expected_sums.push_back(std::log(std::exp(sums[i]) + std::exp(others[i])));
    expect_close("out", read(merged), expected, type(), {8, type(), {largest(expected)}});
    expect_close("lse", read(lse), expected_sums, accumulator(), {16, accumulator(), {1.0}});
    finish();
  }
}

TEST_P(AttentionPartsTest, MergingNothing) {
  const Values some = rounded(normal(2 * 3 * 2 * 8), accumulator());
  const Shape shape = {2, 3, 2, 8}, rows = {2, 2, 3};
  const Values zero(some.size(), 0.0), none(12, -INFINITY),
      sums = rounded(normal(12), accumulator());
  const Tensor merged = inout(some, accumulator(), shape), lse = inout(sums, accumulator(), rows);
  const Tensor empty = in(zero, type(), shape), empty_lse = in(none, accumulator(), rows);
  backend().attention_merge(merged, lse, empty, empty_lse);
  EXPECT_EQ(read(merged), some);
  EXPECT_EQ(read(lse), sums);
  const Tensor first = inout(zero, accumulator(), shape),
               first_lse = inout(none, accumulator(), rows);
  backend().attention_merge(first, first_lse, empty, empty_lse);
  EXPECT_EQ(read(first), zero);
  EXPECT_EQ(read(first_lse), none);
  const Values part = activations(2 * 3 * 2 * 8);
  backend().attention_merge(first, first_lse, in(part, type(), shape),
                            in(sums, accumulator(), rows));
  EXPECT_EQ(read(first), part);
  EXPECT_EQ(read(first_lse), sums);
}

}  // namespace
}  // namespace kintsugi
