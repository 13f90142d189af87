// Table look-up and its gradient.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {

void CpuBackend::do_embedding_forward(Tensor out, Tensor ids, Tensor table, bool accumulate,
                                      std::int64_t first_row) {
  const std::int64_t tokens = out.extent(0), width = out.extent(1);
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

void CpuBackend::do_scatter_rows(Tensor destination, Tensor x, Tensor rows) {
  const std::size_t bytes = static_cast<std::size_t>(x.extent(2)) * size_of(x.dtype());
  const auto address = [](const Tensor& t, std::int64_t row, std::int64_t head) {
    return static_cast<std::byte*>(t.data()) +
           static_cast<std::size_t>(row * t.stride(0) + head * t.stride(1)) * size_of(t.dtype());
  };
  pool_.run_ranges(x.extent(0), 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t row = rows.as<std::int32_t>()[i];
      if (row < 0) continue;
      for (std::int64_t head = 0; head < x.extent(1); ++head)
        std::memcpy(address(destination, row, head), address(x, i, head), bytes);
    }
  });
}

// Task t owns the table rows with row % tasks == t, so that each row is summed by one thread in
// token order.
void CpuBackend::do_embedding_backward(Tensor dtable, Tensor ids, Tensor dout,
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
