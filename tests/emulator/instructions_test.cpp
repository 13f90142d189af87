// The matrix instructions of the emulator, against plain matmuls, and its maths.
#include "emulator/test_support.h"

namespace kintsugi::emulator {
namespace {

// Numbers that bf16 holds exactly.
std::uint16_t bf16_bits(int x) {
  return static_cast<std::uint16_t>(__float_as_uint(static_cast<float>(x)) >> 16);
}
unsigned pair(int low, int high) {
  return bf16_bits(low) | static_cast<unsigned>(bf16_bits(high)) << 16;
}

// Matrices of small, distinct rows and columns, and their product.
int a_at(int i, int k) { return (7 * i + 3 * k) % 61 - 30; }
int b_at(int k, int j) { return (5 * k + 11 * j) % 53 - 26; }
int c_at(int i, int j) { return 100 * i + j; }
float product_at(int i, int j, int depth) {
  int sum = c_at(i, j);
  for (int k = 0; k < depth; ++k) sum += a_at(i, k) * b_at(k, j);
  return static_cast<float>(sum);
}

TEST(Matrix, MmaIsAMatmul) {
  run(grid_of(1, 64), [] {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4 * 2;
    const auto a = [](int i, int k) { return pair(a_at(i, k), a_at(i, k + 1)); };
    const auto b = [](int k, int j) { return pair(b_at(k, j), b_at(k + 1, j)); };
    const unsigned left[4] = {a(g, t), a(g + 8, t), a(g, t + 8), a(g + 8, t + 8)};
    const unsigned right[2] = {b(t, g), b(t + 8, g)};
    float d[4];
    for (int r = 0; r < 4; ++r) d[r] = static_cast<float>(c_at(g + 8 * (r / 2), t + r % 2));
    mma_m16n8k16(d, left, right, true);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(d[r], product_at(g + 8 * (r / 2), t + r % 2, 16));
  });
}

TEST(Matrix, LdmatrixGivesFragments) {
  run(grid_of(1, 32), [] {
    struct alignas(16) Row {
      std::uint16_t at[8];
    };
    SHARED(Row[32], rows);
    const unsigned lane = threadIdx.x;
    for (unsigned j = 0; j < 8; ++j) rows[lane].at[j] = static_cast<std::uint16_t>(8 * lane + j);
    __syncthreads();
    unsigned r[4];
    for (unsigned m = 0; m < 4; ++m) {
      const unsigned i = lane / 4, j = lane % 4 * 2;
      ldmatrix_x4(r, &rows[lane], false);
      EXPECT_EQ(r[m], (64 * m + 8 * i + j) | (64 * m + 8 * i + j + 1) << 16);
      ldmatrix_x4(r, &rows[lane], true);
      EXPECT_EQ(r[m], (64 * m + 8 * j + i) | (64 * m + 8 * (j + 1) + i) << 16);
    }
  });
}

#if KINTSUGI_WAVE == 64

template <int S>
void check_mfma(void (*mfma)(float (&)[S * S / 64], const Fragment16&, const Fragment16&, Where)) {
  run(grid_of(1, 128), [=] {
    const int lane = threadIdx.x % 64;
    Fragment16 a, b;
    for (int e = 0; e < 4; ++e) {
      a[e] = bf16_bits(a_at(lane % S, 4 * (lane / S) + e));
      b[e] = bf16_bits(b_at(4 * (lane / S) + e, lane % S));
    }
    const auto row = [=](int r) {
      return S == 32 ? 8 * (r / 4) + 4 * (lane / 32) + r % 4 : 4 * (lane / 16) + r;
    };
    float d[S * S / 64];
    for (int r = 0; r < S * S / 64; ++r) d[r] = static_cast<float>(c_at(row(r), lane % S));
    mfma(d, a, b, Where::current());
    for (int r = 0; r < S * S / 64; ++r) EXPECT_EQ(d[r], product_at(row(r), lane % S, 256 / S));
  });
}
TEST(Matrix, MfmaIsAMatmul) {
  check_mfma<32>(mfma_32x32x8_bf16);
  check_mfma<16>(mfma_16x16x16_bf16);
}

TEST(Matrix, MfmaFlushesSubnormals) {
  run(grid_of(1, 64), [] {
    // fp16 3e-5 times 1024: the operand is subnormal. 6.2e-5 is not.
    const Fragment16 small = {0x01f7, 0, 0, 0}, normal = {0x0410, 0, 0, 0},
                     large = {0x6400, 0, 0, 0};
    float d[4] = {};
    mfma_16x16x16_f16(d, small, large);
    EXPECT_EQ(d[0], 0.0f);
    mfma_16x16x16_f16(d, normal, large);
    EXPECT_GT(d[0], 0.06f);
    // A subnormal accumulator, and a subnormal product of bf16.
    float e[4] = {1e-40f, 1e-40f, 1e-40f, 1e-40f};
    const Fragment16 tiny = {0x1000, 0, 0, 0};
    mfma_16x16x16_bf16(e, tiny, tiny);
    EXPECT_EQ(e[0], 0.0f);
  });
}

TEST(Matrix, MfmaNeedsTheWholeWave) {
  EXPECT_MISTAKE(mistake_of(grid_of(1, 32),
                            [] {
                              float d[4] = {};
                              const Fragment16 x = {};
                              mfma_16x16x16_bf16(d, x, x);
                            }),
                 "needs all lanes");
}

#endif

TEST(Device, MathsAgreesWithCuda) {
  EXPECT_EQ(max(1, 2u), 2u);
  EXPECT_EQ(min(1.0f, NAN), 1.0f);
  EXPECT_EQ(max(NAN, 1.0), 1.0);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(8), 4);
  EXPECT_EQ(__byte_perm(0x33221100u, 0x77665544u, 0x7410u), 0x77441100u);
  EXPECT_EQ(__byte_perm(0x80u, 0, 0x0008u), 0x808080ffu);
  EXPECT_EQ(__vmaxu2(0x00010005u, 0x00020003u), 0x00020005u);
  EXPECT_EQ(rsqrt(4.0f), 0.5f);
}

}  // namespace
}  // namespace kintsugi::emulator
