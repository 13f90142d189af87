#include "backend/operation_fixture.h"

namespace kintsugi {
namespace {

class RopeTest : public OperationTest {
 protected:
  // For each position cosines, then sines, as the model computes them.
  Values table(std::int64_t positions, std::int64_t dim) {
    Values values;
    for (std::int64_t position = 0; position < positions; ++position)
      for (std::int64_t i = 0; i < dim; ++i) {
        const std::int64_t pair = i % (dim / 2);
        const double angle =
            static_cast<double>(position) *
            std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
        values.push_back(i < dim / 2 ? std::cos(angle) : std::sin(angle));
      }
    return rounded(values, accumulator());
  }

  // Rotates each pair by the angle of its position; direction -1 is the inverse.
  static Values rotate(const Values& x, std::int64_t heads, std::int64_t dim, const Values& table,
                       const Ids& positions, double direction,
                       RopePairs pairs = RopePairs::Halves) {
    Values y(x.size());
    const auto half = static_cast<std::size_t>(dim / 2);
    const std::size_t step = pairs == RopePairs::Halves ? 1 : 2,
                      distance = pairs == RopePairs::Halves ? half : 1;
    for (std::size_t row = 0; row * 2 * half < x.size(); ++row) {
      const double* cosine =
          &table[static_cast<std::size_t>(positions[row / static_cast<std::size_t>(heads)]) * 2 *
                 half];
      const double* sine = cosine + half;
      for (std::size_t i = 0; i < half; ++i) {
        const std::size_t first = row * 2 * half + i * step, second = first + distance;
        y[first] = x[first] * cosine[i] - x[second] * sine[i] * direction;
        y[second] = x[second] * cosine[i] + x[first] * sine[i] * direction;
      }
    }
    return y;
  }
};
KINTSUGI_ON_EACH_BACKEND(RopeTest);

TEST_P(RopeTest, TurnsPairsByTheirPosition) {
  for (const std::int64_t dim : {2, 8, 20, 64, 80, 128})
    for (const std::int64_t tokens : {1, 2, 17, 131})
      for (const bool inverse : {false, true})
        for (const RopePairs pairs : {RopePairs::Halves, RopePairs::Adjacent}) {
          SCOPED_TRACE(fmt::format("dim {} tokens {} inverse {} pairs {}", dim, tokens, inverse,
                                   static_cast<int>(pairs)));
          const std::int64_t heads = 3;
          const Values cosines = table(300, dim), x = activations(tokens * heads * dim);
          const Ids positions = integers(tokens, 0, 299);  // any order: packed documents, decoding
          // q inside packed rows, whose other elements must not change.
          const Tensor q = allow(inside(type(), tokens, heads * dim, dim, 2 * dim).split_last(dim));
          write(q, x);
          backend().rope(q, in(cosines, accumulator(), {300, dim}), in(positions, {tokens}),
                         inverse, pairs);
          expect_close("q", read(q),
                       rotate(x, heads, dim, cosines, positions, inverse ? -1 : 1, pairs), type(),
                       {4, accumulator()});
          finish();
        }
}

TEST_P(RopeTest, HeadsApart) {
  const std::int64_t tokens = 5, heads = 3, dim = 8;
  const Values cosines = table(10, dim), x = activations(tokens * heads * dim);
  const Ids positions = integers(tokens, 0, 9);
  const Tensor k = allow(buffer(type(), {tokens, heads, 3 * dim}).part(2, dim, dim));
  write(k, x);
  backend().rope(k, in(cosines, accumulator(), {10, dim}), in(positions, {tokens}), false);
  expect_close("k", read(k), rotate(x, heads, dim, cosines, positions, 1), type(),
               {4, accumulator()});
}

TEST_P(RopeTest, InverseRestores) {
  const std::int64_t tokens = 29, heads = 5, dim = 20;
  const Values x = activations(tokens * heads * dim);
  const Tensor q = inout(x, type(), {tokens, heads, dim}),
               cosines = in(table(64, dim), accumulator(), {64, dim});
  const Tensor positions = in(integers(tokens, 1, 63), {tokens});
  backend().rope(q, cosines, positions, false);
  EXPECT_GT(largest(read(q)), 0);
  EXPECT_NE(read(q), x);
  backend().rope(q, cosines, positions, true);
  expect_close("q", read(q), x, type(), {4, type()});
}

TEST_P(RopeTest, PositionZeroChangesNothing) {
  const Values x = activations(4 * 2 * 8);
  const Tensor q = inout(x, type(), {4, 2, 8});
  backend().rope(q, in(table(2, 8), accumulator(), {2, 8}), in(Ids{0, 0, 0, 0}, {4}), false);
  EXPECT_EQ(read(q), x);
}

}  // namespace
}  // namespace kintsugi
