// Table look-up and its gradient.
#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {

void CpuBackend::embedding_forward(Tensor out, Tensor ids, Tensor table, bool accumulate,
                                   std::int64_t first_row) {
  const std::int64_t tokens = out.extent(0), width = out.extent(1);
  KINTSUGI_CHECK(ids.elements() == tokens && table.extent(1) == width,
                 "embedding: out {}, table {}", to_string(out.shape()), to_string(table.shape()));
  visit_float(out.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* id = ids.as<std::int32_t>();
    pool_.run_ranges(tokens, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t token = begin; token < end; ++token) {
        T* to = out.as<T>() + token * out.stride(0);
        const std::int64_t row = id[token] - first_row;
        if (row < 0 || row >= table.extent(0)) {
          if (!accumulate) std::fill(to, to + width, static_cast<T>(A(0)));
          continue;
        }
        const T* from = table.as<T>() + row * table.stride(0);
        for (std::int64_t i = 0; i < width; ++i)
          to[i] = accumulate ? static_cast<T>(static_cast<A>(to[i]) + static_cast<A>(from[i]))
                             : from[i];
      }
    });
  });
}

// Task t owns the table rows with row % tasks == t, so that each row is summed by one thread in
// token order.
void CpuBackend::embedding_backward(Tensor dtable, Tensor ids, Tensor dout,
                                    std::int64_t first_row) {
  const std::int64_t tokens = dout.extent(0), width = dout.extent(1);
  visit_float(dout.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* id = ids.as<std::int32_t>();
    const int tasks = pool_.threads();
    pool_.run(tasks, [&](std::int64_t task, int) {
      for (std::int64_t token = 0; token < tokens; ++token) {
        const std::int64_t row = id[token] - first_row;
        if (row < 0 || row >= dtable.extent(0) || row % tasks != task) continue;
        const T* from = dout.as<T>() + token * dout.stride(0);
        A* to = dtable.as<A>() + row * dtable.stride(0);
        for (std::int64_t i = 0; i < width; ++i) to[i] += static_cast<A>(from[i]);
      }
    });
  });
}

}  // namespace kintsugi
