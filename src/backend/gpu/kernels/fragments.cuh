#pragma once

#include <cstring>

#include "backend/gpu/kernels/device.cuh"

// Tiles of 16 x 16 elements on the matrix units. A wave (kLanes threads) multiplies
//
//   sums[row][column] += sum over k of left[row][k] * right[column][k]
//
// of 16-bit numbers in fp32. Each lane holds a few elements of every tile: of sums, those at
// row(lane, i) and column(lane, j). Sums become the left operand of the next product without any
// exchange between lanes, as in softmax(Q K^T) V.

namespace kintsugi::gpu {

// Otherwise MFMA, whose waves have twice the registers, on a GPU with 64 KiB of shared memory.
inline constexpr bool kMma = kMatrixUnit == MatrixUnit::Mma;

// What every GPU of NVIDIA that is supported has, and kSharedBytes.
inline constexpr std::size_t kMatrixSharedBytes =
    kSharedBytes < (std::size_t{99} << 10) ? kSharedBytes : std::size_t{99} << 10;

// Rows of 16-bit or 8-bit numbers in shared memory. The eight rows of a column of 16-byte words are
// in different banks: the words of a row are permuted by its number, or rows are longer by one
// word.
template <class T, int kRows, int kColumns>
struct alignas(16) SharedTile {
  static constexpr unsigned kWord = 16 / sizeof(T), kLine = 8 * kWord;  // elements
  static constexpr bool kPermuted = kColumns % kLine == 0;
  static constexpr unsigned kStride = kPermuted ? kColumns : kColumns + kWord;

  __device__ static unsigned offset(unsigned row, unsigned column) {
    if constexpr (kPermuted) column = column / kLine * kLine + (column % kLine ^ row % 8 * kWord);
    return row * kStride + column;
  }
  // The elements from (row, column) to the next multiple of kWord columns are adjacent.
  __device__ T* at(int row, int column) {
    return element + offset(static_cast<unsigned>(row), static_cast<unsigned>(column));
  }
  __device__ const T* at(int row, int column) const {
    return element + offset(static_cast<unsigned>(row), static_cast<unsigned>(column));
  }

  T element[kRows * kStride];
};

template <class T, MatrixUnit = kMatrixUnit>
struct Fragments;

// mma.m16n8k16: two instructions per product. Lane l has rows l / 4 and l / 4 + 8.
template <class T>
struct Fragments<T, MatrixUnit::Mma> {
  static constexpr int kLanes = 32;
  static constexpr int kOwnRows = 2, kOwnColumns = 4;  // of sums, of a lane
  static constexpr int kAdjacent = 2;                  // own columns that are neighbours

  struct Left {
    unsigned pairs[4];
  };
  struct Right {
    unsigned pairs[4];
  };
  struct Sums {
    __device__ float& at(int i, int j) { return d[j / 2][2 * i + j % 2]; }
    float d[2][4] = {};
  };

  __device__ static int row(int lane, int i) { return lane / 4 + 8 * i; }
  __device__ static int column(int lane, int j) { return 8 * (j / 2) + lane % 4 * 2 + j % 2; }

  // left[row][k] = tile(row0 + row, column0 + k)
  template <class Tile>
  __device__ static Left load_left(const Tile& tile, int row0, int column0, int lane) {
    Left left;
    load_matrices(left.pairs, tile.at(row0 + lane % 16, column0 + lane / 16 * 8));
    return left;
  }
  // right[column][k] = tile(row0 + column, column0 + k)
  template <class Tile>
  __device__ static Right load_right(const Tile& tile, int row0, int column0, int lane) {
    Right right;
    load_matrices(right.pairs,
                  tile.at(row0 + lane / 16 * 8 + lane % 8, column0 + lane / 8 % 2 * 8));
    return right;
  }
  // right[column][k] = tile(row0 + k, column0 + column)
  template <class Tile>
  __device__ static Right load_right_transposed(const Tile& tile, int row0, int column0, int lane) {
    Right right;
    gpu::load_transposed(right.pairs, tile.at(row0 + lane % 16, column0 + lane / 16 * 8));
    return right;
  }
  // left[row][k] = tile(row0 + k, column0 + row)
  template <class Tile>
  __device__ static Left load_left_transposed(const Tile& tile, int row0, int column0, int lane) {
    Left left;
    gpu::load_transposed(left.pairs,
                         tile.at(row0 + lane / 16 * 8 + lane % 8, column0 + lane / 8 % 2 * 8));
    return left;
  }
  __device__ static Left left_of(const Sums& sums) {
    return {{pack_pair<T>(sums.d[0][0], sums.d[0][1]), pack_pair<T>(sums.d[0][2], sums.d[0][3]),
             pack_pair<T>(sums.d[1][0], sums.d[1][1]), pack_pair<T>(sums.d[1][2], sums.d[1][3])}};
  }
  // Four neighbours of row(lane, i), from packed_column(lane) on. To be called by all lanes: two
  // exchange halves of theirs.
  __device__ static Pack<T, 4> packed(const Sums& sums, int i, int lane) {
    const unsigned low = pack_pair<T>(sums.d[0][2 * i], sums.d[0][2 * i + 1]),
                   high = pack_pair<T>(sums.d[1][2 * i], sums.d[1][2 * i + 1]);
    const bool odd = lane % 2 == 1;
    const unsigned other = shuffle_xor(odd ? low : high, 1);
    const unsigned words[2] = {odd ? other : low, odd ? high : other};
    Pack<T, 4> pack;
    memcpy(&pack, words, sizeof(pack));
    return pack;
  }
  __device__ static int packed_column(int lane) { return lane % 2 * 8 + lane % 4 / 2 * 4; }
  __device__ static void multiply_add(Sums& sums, const Left& left, const Right& right) {
    const unsigned(&a)[4] = left.pairs;
    gpu::multiply_add<T>(sums.d[0], a[0], a[1], a[2], a[3], right.pairs[0], right.pairs[1]);
    gpu::multiply_add<T>(sums.d[1], a[0], a[1], a[2], a[3], right.pairs[2], right.pairs[3]);
  }
  // Of the lanes that have the same rows.
  __device__ static float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
  }
  __device__ static float row_max(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
  }
};

// MFMA 16x16x16, which gives the transposed sums of its operands: the right one comes first. Lane l
// has row l % 16.
template <class T>
struct Fragments<T, MatrixUnit::Mfma> {
  static constexpr int kLanes = 64;
  static constexpr int kOwnRows = 1, kOwnColumns = 4;
  static constexpr int kAdjacent = 4;

  struct Operand {
    std::uint16_t element[4];
  };
  using Left = Operand;
  using Right = Operand;
  struct Sums {
    __device__ float& at(int, int j) { return d[j]; }
    float d[4] = {};
  };

  __device__ static int row(int lane, int) { return lane % 16; }
  __device__ static int column(int lane, int j) { return lane / 16 * 4 + j; }

  template <class Tile>
  __device__ static Left load_left(const Tile& tile, int row0, int column0, int lane) {
    const Pack<T, 4> pack = load<4>(tile.at(row0 + lane % 16, column0 + lane / 16 * 4));
    Operand operand;
    memcpy(&operand, &pack, sizeof(operand));
    return operand;
  }
  template <class Tile>
  __device__ static Right load_right(const Tile& tile, int row0, int column0, int lane) {
    return load_left(tile, row0, column0, lane);
  }
  template <class Tile>
  __device__ static Right load_right_transposed(const Tile& tile, int row0, int column0, int lane) {
    Operand operand;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const T x = *tile.at(row0 + lane / 16 * 4 + k, column0 + lane % 16);
      memcpy(&operand.element[k], &x, sizeof(x));
    }
    return operand;
  }
  template <class Tile>
  __device__ static Left load_left_transposed(const Tile& tile, int row0, int column0, int lane) {
    return load_right_transposed(tile, row0, column0, lane);
  }
  __device__ static Left left_of(const Sums& sums) {
    Operand operand;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const T x = down<T>(sums.d[k]);
      memcpy(&operand.element[k], &x, sizeof(x));
    }
    return operand;
  }
  __device__ static Pack<T, 4> packed(const Sums& sums, int, int) {
    Pack<T, 4> pack;
#pragma unroll
    for (int j = 0; j < 4; ++j) pack.v[j] = down<T>(sums.d[j]);
    return pack;
  }
  __device__ static int packed_column(int lane) { return column(lane, 0); }
  __device__ static void multiply_add(Sums& sums, const Left& left, const Right& right) {
    gpu::multiply_add<T>(sums.d, right.element, left.element);
  }
  __device__ static float row_sum(float x) {
    x += shuffle_wave_xor(x, 16);
    return x + shuffle_wave_xor(x, 32);
  }
  __device__ static float row_max(float x) {
    x = fmaxf(x, shuffle_wave_xor(x, 16));
    return fmaxf(x, shuffle_wave_xor(x, 32));
  }
};

}  // namespace kintsugi::gpu
