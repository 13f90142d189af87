#pragma once

#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {

inline constexpr std::int64_t kReductionBlocks = 16;

template <class A, class F>
void CpuBackend::reduce_columns(std::int64_t rows, std::int64_t width, int outputs,
                                A* const* targets, const F& sum_rows) {
  const std::int64_t blocks = std::clamp<std::int64_t>(rows / 8, 1, kReductionBlocks);
  const std::int64_t sums = outputs * width;
  const std::size_t bytes = static_cast<std::size_t>(blocks * sums) * sizeof(A);
  if (partials_.size() < bytes) partials_.resize(bytes);
  A* partials = reinterpret_cast<A*>(partials_.data());
  pool_.run(blocks, [&](std::int64_t block, int) {
    A* partial = partials + block * sums;
    std::fill(partial, partial + sums, A(0));
    sum_rows(rows * block / blocks, rows * (block + 1) / blocks, partial);
  });
  for (std::int64_t block = 0; block < blocks; ++block)
    for (int output = 0; output < outputs; ++output) {
      const A* partial = partials + block * sums + output * width;
      A* target = targets[output];
      if (target == nullptr) continue;
      for (std::int64_t i = 0; i < width; ++i) target[i] += partial[i];
    }
}

}  // namespace kintsugi
