// Dropout. The mask is a function of the key and the global element index: it is never stored and
// is the same in every layout.
#include "backend/cpu/cpu_backend_impl.h"
#include "core/philox.h"

namespace kintsugi {
namespace {

// to = [residual +] mask * from / (1 - p)
template <class T>
void drop_row(T* to, const T* from, const T* residual, std::int64_t width, std::int64_t global_row,
              const DropoutOptions& options) {
  using A = Accumulator<T>;
  const A keep = A(1) / (A(1) - static_cast<A>(options.probability));
  const float limit = static_cast<float>(options.probability);
  Philox::Block block{};
  for (std::int64_t i = 0; i < width; ++i) {
    // Four elements share a draw: element e takes word e % 4 of draw e / 4.
    const auto element = static_cast<std::uint64_t>(
        global_row * (options.width > 0 ? options.width : width) + options.first_column + i);
    if (i == 0 || element % 4 == 0) block = Philox::draw(options.key, element / 4);
    const bool kept = Philox::uniform(block[element % 4]) >= limit;
    const A value = kept ? static_cast<A>(from[i]) * keep : A(0);
    to[i] = static_cast<T>(residual != nullptr ? static_cast<A>(residual[i]) + value : value);
  }
}

template <class T>
void keep_row(T* to, const T* from, const T* residual, std::int64_t width) {
  using A = Accumulator<T>;
  for (std::int64_t i = 0; i < width; ++i)
    to[i] = residual != nullptr
                ? static_cast<T>(static_cast<A>(residual[i]) + static_cast<A>(from[i]))
                : from[i];
}

}  // namespace

void CpuBackend::do_dropout(Tensor y, Tensor x, const DropoutOptions& options, Tensor residual) {
  const std::int64_t rows = x.extent(0), width = x.extent(1);
  const std::int32_t* row_indices = options.rows ? options.rows.as<std::int32_t>() : nullptr;
  visit_float(x.dtype(), [&]<class T>() {
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* from = x.as<T>() + row * x.stride(0);
        const T* extra = residual ? residual.as<T>() + row * residual.stride(0) : nullptr;
        T* to = y.as<T>() + row * y.stride(0);
        const std::int64_t global_row = options.first_row + (row_indices ? row_indices[row] : row);
        options.probability == 0 ? keep_row(to, from, extra, width)
                                 : drop_row(to, from, extra, width, global_row, options);
      }
    });
  });
}

}  // namespace kintsugi
