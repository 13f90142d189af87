#pragma once

#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {

inline constexpr std::int64_t kReductionPieces = 16;

template <class A, class F>
void CpuBackend::reduce_columns(std::int64_t rows, std::int64_t width, int outputs,
                                A* const* targets, const F& piece) {
  const std::int64_t pieces = std::clamp<std::int64_t>(rows / 8, 1, kReductionPieces);
  const std::int64_t sums = outputs * width;
  const std::size_t bytes = static_cast<std::size_t>(pieces * sums) * sizeof(A);
  if (partials_.size() < bytes) partials_.resize(bytes);
  A* partials = reinterpret_cast<A*>(partials_.data());
  pool_.run(pieces, [&](std::int64_t p, int) {
    A* mine = partials + p * sums;
    std::fill(mine, mine + sums, A(0));
    piece(rows * p / pieces, rows * (p + 1) / pieces, mine);
  });
  for (std::int64_t p = 0; p < pieces; ++p)
    for (int output = 0; output < outputs; ++output) {
      const A* mine = partials + p * sums + output * width;
      A* target = targets[output];
      if (target == nullptr) continue;
      for (std::int64_t i = 0; i < width; ++i) target[i] += mine[i];
    }
}

}  // namespace kintsugi
