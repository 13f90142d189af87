#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"

namespace kintsugi {

// Arithmetic in double on stored elements, for tools that read and write files. Stored elements may
// be unaligned.

bool is_float(DType dtype);  // F64, F32, BF16, F16

void to_doubles(const std::byte* stored, DType dtype, std::span<double> values);

struct RoundingReport {
  std::size_t overflows = 0;   // finite values that became infinite
  std::size_t non_finite = 0;  // values that were infinite or NaN before
};
// Rounds every value once, to nearest even, to a floating-point type.
RoundingReport from_doubles(std::span<const double> values, DType dtype, std::byte* stored);

// sums = factor · values, or sums += factor · values.
void scale_into(std::span<double> sums, double factor, std::span<const double> values);
void add_scaled(std::span<double> sums, double factor, std::span<const double> values);
double dot_product(std::span<const double> a, std::span<const double> b);

}  // namespace kintsugi
