// Dropout whose mask is a function of the key and of the global element: never stored, the same in
// every layout.
#include "backend/cpu/cpu_backend_impl.h"
#include "core/philox.h"

namespace kintsugi {

void CpuBackend::dropout(Tensor y, Tensor x, const DropoutOptions& options, Tensor residual) {
  const std::int64_t rows = x.extent(0), width = x.extent(1);
  KINTSUGI_CHECK(options.probability >= 0 && options.probability < 1, "dropout probability {}",
                 options.probability);
  visit_float(x.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const A keep = A(1) / (A(1) - static_cast<A>(options.probability));
    const float limit = static_cast<float>(options.probability);
    pool_.run_ranges(rows, 4, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* from = x.as<T>() + row * x.stride(0);
        const T* extra = residual ? residual.as<T>() + row * residual.stride(0) : nullptr;
        T* to = y.as<T>() + row * y.stride(0);
        Philox::Block block{};
        for (std::int64_t i = 0; i < width; ++i) {
          // Four elements share a draw: element e takes word e % 4 of draw e / 4.
          const auto element = static_cast<std::uint64_t>((options.first_row + row) * width + i);
          if (i == 0 || element % 4 == 0) block = Philox::draw(options.key, element / 4);
          const bool kept = Philox::uniform(block[element % 4]) >= limit;
          const A value = kept ? static_cast<A>(from[i]) * keep : A(0);
          to[i] = static_cast<T>(extra != nullptr ? static_cast<A>(extra[i]) + value : value);
        }
      }
    });
  });
}

}  // namespace kintsugi
