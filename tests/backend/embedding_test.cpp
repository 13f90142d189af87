#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

struct Lookup {
  std::int64_t tokens, width, vocabulary;
};
constexpr Lookup kLookups[] = {{1, 1, 1},     {2, 7, 3},    {17, 20, 5},
                               {65, 64, 300}, {130, 33, 7}, {3, 1001, 50}};

class EmbeddingTest : public OperationTest {};
KINTSUGI_ON_EACH_BACKEND(EmbeddingTest);

TEST_P(EmbeddingTest, TakesRowsOfTheTable) {
  for (const Lookup& c : kLookups)
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(fmt::format("tokens {} width {} vocabulary {} accumulate {}", c.tokens, c.width,
                               c.vocabulary, accumulate));
      const Ids ids = integers(c.tokens, 0, static_cast<std::int32_t>(c.vocabulary) - 1);
      const Values table = activations(c.vocabulary * c.width),
                   before = activations(c.tokens * c.width);
      Values expected(before.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto width = static_cast<std::size_t>(c.width);
        expected[i] = table[static_cast<std::size_t>(ids[i / width]) * width + i % width];
        if (accumulate) expected[i] += before[i];
      }
      const Tensor y = out(type(), {c.tokens, c.width});
      if (accumulate) write(y, before);
      backend().embedding_forward(y, in(ids, {c.tokens}),
                                  in(table, type(), {c.vocabulary, c.width}), accumulate);
      expect_close("out", read(y), expected, type(), {0, type()});
      finish();
    }
}

TEST_P(EmbeddingTest, AddsGradientsOfRepeatedTokens) {
  for (const Lookup& c : kLookups) {
    SCOPED_TRACE(fmt::format("tokens {} width {} vocabulary {}", c.tokens, c.width, c.vocabulary));
    const Ids ids = integers(c.tokens, 0, static_cast<std::int32_t>(c.vocabulary) - 1);
    const Values dout = activations(c.tokens * c.width);
    const Values before = rounded(normal(c.vocabulary * c.width), accumulator());
    const auto width = static_cast<std::size_t>(c.width);
    Values expected = before, size = magnitudes(before);
    for (std::size_t i = 0; i < dout.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(ids[i / width]) * width + i % width;
      expected[at] += dout[i];
      size[at] += std::abs(dout[i]);
    }
    const Tensor dtable = inout(before, accumulator(), {c.vocabulary, c.width});
    backend().embedding_backward(dtable, in(ids, {c.tokens}),
                                 in(dout, type(), {c.tokens, c.width}));
    expect_close("dtable", read(dtable), expected, accumulator(),
                 {4 + std::sqrt(static_cast<double>(c.tokens)), accumulator(), size});
    finish();
  }
}

// Sums are in token order: (big + small) - big is 0, while other orders give `small`.
TEST_P(EmbeddingTest, AddsInTheOrderOfTheTokens) {
  const double big = type() == DType::F64 ? 0x1p60 : type() == DType::F16 ? 0x1p15 : 0x1p30;
  const double small = type() == DType::F16 ? 0x1p-12 : 1.0;
  const std::int64_t width = 9, tokens = 5;
  Values dout;
  for (const double value : {big, small, -big, small, small}) dout.insert(dout.end(), width, value);
  const Tensor dtable = inout(Values(2 * width, 0.0), accumulator(), {2, width});
  backend().embedding_backward(dtable, in(Ids(tokens, 1), {tokens}),
                               in(dout, type(), {tokens, width}));
  EXPECT_EQ(read(dtable.rows(1, 1)), Values(width, 2 * small));
  EXPECT_EQ(read(dtable.rows(0, 1)), Values(width, 0.0));
}

// A table of 23 rows in three shards of 8, 8 and 7: each shard handles only its own ids; together
// they give the result of the full table.
TEST_P(EmbeddingTest, ShardsOfTheTable) {
  const std::int64_t tokens = 67, width = 20, vocabulary = 23;
  const auto columns = static_cast<std::size_t>(width);
  const Ids ids = integers(tokens, 0, static_cast<std::int32_t>(vocabulary) - 1);
  const Values table = activations(vocabulary * width), dout = activations(tokens * width);
  const Values before = activations(tokens * width);
  const Tensor gathered = inout(before, type(), {tokens, width});
  Values dtable_found, accumulated(dout.size());
  for (std::size_t i = 0; i < dout.size(); ++i)
    accumulated[i] =
        before[i] + table[static_cast<std::size_t>(ids[i / columns]) * columns + i % columns];
  for (const std::int64_t first : {0, 8, 16}) {
    const std::int64_t rows = std::min<std::int64_t>(8, vocabulary - first);
    const Values shard(table.begin() + first * width, table.begin() + (first + rows) * width);
    const Tensor y = out(type(), {tokens, width}), some = in(shard, type(), {rows, width});
    backend().embedding_forward(y, in(ids, {tokens}), some, false, first);
    const Values found = read(y);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::int64_t row = ids[i / columns] - first;
      const bool in_shard = row >= 0 && row < rows;
      ASSERT_EQ(found[i],
                in_shard ? shard[static_cast<std::size_t>(row) * columns + i % columns] : 0.0);
    }
    backend().embedding_forward(gathered, in(ids, {tokens}), some, true, first);

    const Tensor dtable =
        inout(Values(static_cast<std::size_t>(rows * width), 0.0), accumulator(), {rows, width});
    backend().embedding_backward(dtable, in(ids, {tokens}), in(dout, type(), {tokens, width}),
                                 first);
    const Values gradient = read(dtable);
    dtable_found.insert(dtable_found.end(), gradient.begin(), gradient.end());
  }
  expect_close("accumulated", read(gathered), accumulated, type(), {0, type()});
  Values expected(table.size(), 0.0);
  for (std::size_t i = 0; i < dout.size(); ++i)
    expected[static_cast<std::size_t>(ids[i / columns]) * columns + i % columns] += dout[i];
  expect_close("dtable", dtable_found, expected, accumulator(), {16, accumulator()});
}

}  // namespace
}  // namespace kintsugi
