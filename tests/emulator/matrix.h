#pragma once

#include <cstdint>

#include "emulator/executor.h"
#include "tensor/dtype.h"

// The matrix instructions of both vendors: each lane holds a few elements (a fragment) of a matrix,
// and all lanes call together. 16-bit numbers are given by their bits.
namespace kintsugi::emulator {

// ---- NVIDIA, by a team of 32
// mma.sync.m16n8k16.row.col: d (16, 8) += a (16, 16) b (16, 8). A register has two neighbours, the
// first in its low half. Lane l holds, with g = l / 4 and t = 2 (l % 4):
//   a: rows g, g + 8, g, g + 8 at columns t, t, t + 8, t + 8 (and the next column)
//   b: rows t, t + 8 (and the next row) at column g
//   d: rows g, g, g + 8, g + 8 at columns t, t + 1, t, t + 1
// The hardware's rounding differs: here each element of d is rounded once.
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bool bf16,
                  Where where = Where::current());

// ldmatrix.m8n8.x4.b16: four matrices (8, 8) of 16-bit elements. Lane l gives the address of row
// l % 8 of matrix l / 8; it gets elements 2 (l % 4) and the next of row l / 4 of each matrix,
// or of column l / 4 if `transposed`.
void ldmatrix_x4(unsigned (&r)[4], const void* row_of_this_lane, bool transposed,
                 Where where = Where::current());

// wgmma.mma_async.m64nNk16, or m64nNk32 of numbers in fp8 (E4M3): d (64, N) = [d +] a (64, 16)
// b (16, N), both in shared memory, by 128 threads; each thread computes its own elements of d. A
// SharedOperand is what a descriptor with the swizzle of 128 bytes and a stride of 1024 bytes
// means: rows of 128 bytes, whose 16-byte words are permuted by bits 7 to 9 of the address. The
// rows are those of the operand or, if `terms`, the terms, with 64 rows of the operand each, the
// next of which begin `next` bytes later.
struct SharedOperand {
  const unsigned char* address;
  int next;
  bool terms;
};
void wgmma(float* d, int columns, const SharedOperand& a, const SharedOperand& b, bool add,
           DType dtype);

// ---- AMD, by a wave of 64
// v_mfma_f32_32x32x8 and v_mfma_f32_16x16x16: d (S, S) += a (S, K) b (K, S), K = 256 / S.
// Element e of lane l holds a[l % S][k] and b[k][l % S] with k = 4 (l / S) + e. Register r holds
// d[i][l % S] with i = 8 (r / 4) + 4 (l / 32) + r % 4 (S = 32) or 4 (l / 16) + r (S = 16).
// The arithmetic is that of gfx90a, which flushes subnormal numbers to zero.
using Fragment16 = std::uint16_t[4];
void mfma_32x32x8_bf16(float (&d)[16], const Fragment16& a, const Fragment16& b,
                       Where where = Where::current());
void mfma_32x32x8_f16(float (&d)[16], const Fragment16& a, const Fragment16& b,
                      Where where = Where::current());
void mfma_16x16x16_bf16(float (&d)[4], const Fragment16& a, const Fragment16& b,
                        Where where = Where::current());
void mfma_16x16x16_f16(float (&d)[4], const Fragment16& a, const Fragment16& b,
                       Where where = Where::current());

}  // namespace kintsugi::emulator
