// The fragments of kernels/fragments.cuh on the emulated matrix unit, against plain matmuls.
#include "backend/gpu/kernels/fragments.cuh"

#include "emulator/test_support.h"

namespace kintsugi::emulator {
namespace {

// Matrices of small integers, which bf16 and fp16 hold exactly.
int a_at(int row, int k) { return (7 * row + 3 * k) % 13 - 6; }
int b_at(int column, int k) { return (5 * k + 11 * column) % 17 - 8; }
int c_at(int row, int column) { return (row + 2 * column) % 5 - 2; }
int product_at(int row, int column) {
  int sum = 0;
  for (int k = 0; k < 16; ++k) sum += a_at(row, k) * b_at(column, k);
  return sum;
}

// kColumns: of the tiles in shared memory, whose last 16 columns are used.
template <class T, int kColumns>
void check() {
  using F = gpu::Fragments<T>;
  run(grid_of(1, 2 * F::kLanes), [] {
    using Tile = gpu::SharedTile<T, 32, kColumns>;
    constexpr int kRow = 16, kColumn = kColumns - 16;
    SHARED(Tile, a);
    SHARED(Tile, b);
    SHARED(Tile, a_transposed);
    SHARED(Tile, b_transposed);
    SHARED(Tile, c);
    const int thread = threadIdx.x, lane = thread % F::kLanes;
    const auto number = [](int x) { return T(static_cast<float>(x)); };
    for (int i = thread; i < 256; i += 2 * F::kLanes) {
      const int row = i / 16, column = i % 16;
      *a.at(kRow + row, kColumn + column) = number(a_at(row, column));
      *b.at(kRow + row, kColumn + column) = number(b_at(row, column));
      *a_transposed.at(kRow + column, kColumn + row) = number(a_at(row, column));
      *b_transposed.at(kRow + column, kColumn + row) = number(b_at(row, column));
      *c.at(kRow + row, kColumn + column) = number(c_at(row, column));
    }
    __syncthreads();
    const typename F::Left left = F::load_left(a, kRow, kColumn, lane);
    typename F::Sums sums, same, chained, of_transposed;
    F::multiply_add(sums, left, F::load_right(b, kRow, kColumn, lane));
    F::multiply_add(same, left, F::load_right_transposed(b_transposed, kRow, kColumn, lane));
    F::multiply_add(of_transposed, F::load_left_transposed(a_transposed, kRow, kColumn, lane),
                    F::load_right(b, kRow, kColumn, lane));
    // The sums as the left operand of another product.
    F::multiply_add(chained, F::left_of(sums), F::load_right(c, kRow, kColumn, lane));
    for (int i = 0; i < F::kOwnRows; ++i) {
      const auto pack = F::packed(sums, i, lane);
      for (int j = 0; j < 4; ++j)
        EXPECT_EQ(
            static_cast<float>(pack.v[j]),
            static_cast<float>(number(product_at(F::row(lane, i), F::packed_column(lane) + j))));
      float largest = -1e9f, total = 0.0f;
      for (int j = 0; j < F::kOwnColumns; ++j) {
        const int row = F::row(lane, i), column = F::column(lane, j);
        EXPECT_EQ(sums.at(i, j), static_cast<float>(product_at(row, column)));
        EXPECT_EQ(same.at(i, j), sums.at(i, j));
        EXPECT_EQ(of_transposed.at(i, j), sums.at(i, j));
        float next = 0.0f;  // sums are rounded to T
        for (int k = 0; k < 16; ++k)
          next +=
              static_cast<float>(number(product_at(row, k))) * static_cast<float>(c_at(column, k));
        EXPECT_EQ(chained.at(i, j), next);
        largest = std::max(largest, sums.at(i, j));
        total += sums.at(i, j);
      }
      float row_largest = -1e9f, row_total = 0.0f;
      for (int column = 0; column < 16; ++column) {
        const auto x = static_cast<float>(product_at(F::row(lane, i), column));
        row_largest = std::max(row_largest, x);
        row_total += x;
      }
      EXPECT_EQ(F::row_max(largest), row_largest);
      EXPECT_EQ(F::row_sum(total), row_total);
    }
  });
}

TEST(EmulatorFragments, MultiplyTiles) {
  check<gpu::Bf16, 64>();
  check<gpu::Bf16, 96>();
  check<gpu::Half, 128>();
}

}  // namespace
}  // namespace kintsugi::emulator
