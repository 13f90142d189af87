#include "emulator/matrix.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "emulator/race_check.h"
#include "tensor/dtype.h"

namespace kintsugi::emulator {
namespace {

float from_bits(std::uint16_t bits, bool is_bf16) {
  return is_bf16 ? static_cast<float>(std::bit_cast<bf16>(bits))
                 : static_cast<float>(std::bit_cast<f16>(bits));
}

// Half 0 or 1 of a register.
std::uint16_t half_of(unsigned word, int half) {
  return static_cast<std::uint16_t>(word >> 16 * half);
}

template <class Record>
Record& lane(std::span<void* const> records, int lane) {
  if (records[lane] == nullptr)
    failure("lane {} has returned, but a matrix instruction needs all lanes", lane);
  return *static_cast<Record*>(records[lane]);
}

// ---- NVIDIA
struct Mma {
  float (&d)[4];
  const unsigned (&a)[4];
  const unsigned (&b)[2];
  bool is_bf16;
};

void complete_mma(std::span<void* const> records) {
  float a[16][16], b[16][8];
  for (int l = 0; l < 32; ++l) {
    const Mma& mine = lane<Mma>(records, l);
    const int g = l / 4, t = 2 * (l % 4);
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r)
        a[g + 8 * (r % 2)][t + 8 * (r / 2) + half] =
            from_bits(half_of(mine.a[r], half), mine.is_bf16);
      for (int r = 0; r < 2; ++r)
        b[t + 8 * r + half][g] = from_bits(half_of(mine.b[r], half), mine.is_bf16);
    }
  }
  for (int l = 0; l < 32; ++l) {
    Mma& mine = lane<Mma>(records, l);
    for (int r = 0; r < 4; ++r) {
      const int i = l / 4 + 8 * (r / 2), j = 2 * (l % 4) + r % 2;
      double sum = mine.d[r];
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[i][k]) * b[k][j];
      mine.d[r] = static_cast<float>(sum);
    }
  }
}

struct LoadMatrices {
  unsigned (&r)[4];
  const void* row;
  bool transposed;
};

void complete_ldmatrix(std::span<void* const> records) {
  std::uint16_t matrices[4][8][8];
  for (int l = 0; l < 32; ++l)
    std::memcpy(matrices[l / 8][l % 8], lane<LoadMatrices>(records, l).row, 16);
  for (int l = 0; l < 32; ++l) {
    LoadMatrices& mine = lane<LoadMatrices>(records, l);
    const int i = l / 4, j = 2 * (l % 4);
    for (int m = 0; m < 4; ++m) {
      const auto& matrix = matrices[m];
      const unsigned low = mine.transposed ? matrix[j][i] : matrix[i][j];
      const unsigned high = mine.transposed ? matrix[j + 1][i] : matrix[i][j + 1];
      mine.r[m] = low | high << 16;
    }
  }
}

// Element `row` of term `term` of an operand. The words of 128 bytes are permuted by their address.
float element_of(const SharedOperand& x, int row, int term, DType dtype) {
  const auto first = reinterpret_cast<std::uintptr_t>(x.address);
  const int size = static_cast<int>(size_of(dtype));
  const std::uintptr_t at =
      first + static_cast<std::uintptr_t>(x.terms ? row / 64 * x.next + term * 128 + row % 64 * 2
                                                  : row * 128 + term * size);
  const auto* const bits = reinterpret_cast<const std::uint8_t*>(at ^ (at >> 7 & 7) << 4);
  race_check::on_read(bits, size_of(dtype));
  if (dtype == DType::F8) return static_cast<float>(std::bit_cast<f8>(*bits));
  return from_bits(*reinterpret_cast<const std::uint16_t*>(bits), dtype == DType::BF16);
}

// ---- AMD
struct Mfma {
  float* d;
  const Fragment16& a;
  const Fragment16& b;
  bool is_bf16;
};

bool is_subnormal(float x) { return std::abs(x) < std::numeric_limits<float>::min(); }  // or zero
float flushed(float x) { return is_subnormal(x) ? std::copysign(0.0f, x) : x; }
// An operand of 16 bits. The subnormal numbers of fp16 are normal numbers of fp32.
float operand(std::uint16_t bits, bool is_bf16) {
  const bool subnormal = (bits & (is_bf16 ? 0x7f80u : 0x7c00u)) == 0;
  return subnormal ? 0.0f : from_bits(bits, is_bf16);
}

template <int S>
void complete_mfma(std::span<void* const> records) {
  constexpr int K = 256 / S;
  float a[S][K], b[K][S];
  for (int l = 0; l < 64; ++l) {
    const Mfma& mine = lane<Mfma>(records, l);
    for (int e = 0; e < 4; ++e) {
      a[l % S][4 * (l / S) + e] = operand(mine.a[e], mine.is_bf16);
      b[4 * (l / S) + e][l % S] = operand(mine.b[e], mine.is_bf16);
    }
  }
  for (int l = 0; l < 64; ++l) {
    Mfma& mine = lane<Mfma>(records, l);
    for (int r = 0; r < S * S / 64; ++r) {
      const int i = S == 32 ? 8 * (r / 4) + 4 * (l / 32) + r % 4 : 4 * (l / 16) + r, j = l % S;
      float sum = is_subnormal(mine.d[r]) ? 0.0f : mine.d[r];  // +0
      for (int k = 0; k < K; k += 4) {
        float p[4];
        for (int e = 0; e < 4; ++e) p[e] = flushed(a[i][k + e] * b[k + e][j]);
        sum = flushed(sum + flushed(flushed(p[0] + p[1]) + flushed(p[2] + p[3])));
      }
      mine.d[r] = sum;
    }
  }
}

template <int S>
void mfma(const char* name, float* d, const Fragment16& a, const Fragment16& b, bool is_bf16,
          Where where) {
  if (kWave != 64) failure("{} needs waves of 64 lanes", name);
  Mfma record{d, a, b, is_bf16};
  meet({name, Scope::Wave, complete_mfma<S>, false}, &record, where);
}

}  // namespace

void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bool bf16,
                  Where where) {
  Mma record{d, a, b, bf16};
  meet({"mma_m16n8k16", Scope::Team, complete_mma, false}, &record, where);
}

void ldmatrix_x4(unsigned (&r)[4], const void* row_of_this_lane, bool transposed, Where where) {
  if (reinterpret_cast<std::uintptr_t>(row_of_this_lane) % 16 != 0)
    failure("ldmatrix reads a row that does not start at a multiple of 16 bytes");
  race_check::on_read(row_of_this_lane, 16);
  LoadMatrices record{r, row_of_this_lane, transposed};
  meet({"ldmatrix_x4", Scope::Team, complete_ldmatrix, false}, &record, where);
}

void wgmma(float* d, int columns, const SharedOperand& a, const SharedOperand& b, bool add,
           DType dtype) {
  const int thread = static_cast<int>(here().number), lane = thread % 32, warp = thread / 32 % 4;
  for (int r = 0; r < columns / 2; ++r) {
    const int i = 16 * warp + lane / 4 + 8 * (r / 2 % 2), j = 8 * (r / 4) + 2 * (lane % 4) + r % 2;
    double sum = add ? d[r] : 0;
    for (int k = 0; k < 32 / static_cast<int>(size_of(dtype)); ++k)
      sum += static_cast<double>(element_of(a, i, k, dtype)) * element_of(b, j, k, dtype);
    d[r] = static_cast<float>(sum);
  }
}

void mfma_32x32x8_bf16(float (&d)[16], const Fragment16& a, const Fragment16& b, Where where) {
  mfma<32>("mfma_32x32x8_bf16", d, a, b, true, where);
}
void mfma_32x32x8_f16(float (&d)[16], const Fragment16& a, const Fragment16& b, Where where) {
  mfma<32>("mfma_32x32x8_f16", d, a, b, false, where);
}
void mfma_16x16x16_bf16(float (&d)[4], const Fragment16& a, const Fragment16& b, Where where) {
  mfma<16>("mfma_16x16x16_bf16", d, a, b, true, where);
}
void mfma_16x16x16_f16(float (&d)[4], const Fragment16& a, const Fragment16& b, Where where) {
  mfma<16>("mfma_16x16x16_f16", d, a, b, false, where);
}

}  // namespace kintsugi::emulator
