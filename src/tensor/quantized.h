#pragma once

#include "tensor/tensor.h"

namespace kintsugi {

inline constexpr std::int64_t kFp8Multiple = 16;  // of the sizes of an fp8 matmul

// A matrix (rows, columns) in fp8 with a scale for each row, or one for all: element (i, j) is
// values(i, j) * scales(i). Owns no memory, as Tensor.
struct Quantized {
  Tensor values;  // (rows, columns), fp8, contiguous
  Tensor scales;  // (rows) or (1), fp32

  explicit operator bool() const { return static_cast<bool>(values); }
  std::int64_t rows() const { return values.extent(0); }
  std::int64_t columns() const { return values.extent(1); }
};

// The largest magnitudes of the rows and columns of a matrix, as the bits of fp32 numbers, whose
// order is theirs: who writes the matrix can find them for who quantizes it.
struct Maxima {
  Tensor rows, columns;  // (rows), (columns), int32
  explicit operator bool() const { return static_cast<bool>(rows); }
};

// A Quantized in `memory` (bytes), aligned to 256 bytes: values, then scales.
std::int64_t quantized_bytes(std::int64_t rows, std::int64_t columns);
Quantized quantized_in(const Tensor& memory, std::int64_t rows, std::int64_t columns,
                       bool one_scale);

}  // namespace kintsugi
