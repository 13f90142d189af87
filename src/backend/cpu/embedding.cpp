// Table look-up and its gradient.
#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {

void CpuBackend::embedding_forward(Tensor out, Tensor ids, Tensor table, bool accumulate) {
  const std::int64_t tokens = out.extent(0), width = out.extent(1);
  KINTSUGI_CHECK(ids.elements() == tokens && table.extent(1) == width, "embedding {} from {}",
                 to_string(out.shape()), to_string(table.shape()));
  visit_float(out.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* id = ids.as<std::int32_t>();
    pool_.run_ranges(tokens, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t token = begin; token < end; ++token) {
        const T* from = table.as<T>() + id[token] * table.stride(0);
        T* to = out.as<T>() + token * out.stride(0);
        for (std::int64_t i = 0; i < width; ++i)
          to[i] = accumulate ? static_cast<T>(static_cast<A>(to[i]) + static_cast<A>(from[i]))
                             : from[i];
      }
    });
  });
}

// Each task owns the rows id % tasks of the table, so every row is summed by one thread in token
// order.
void CpuBackend::embedding_backward(Tensor dtable, Tensor ids, Tensor dout) {
  const std::int64_t tokens = dout.extent(0), width = dout.extent(1);
  visit_float(dout.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* id = ids.as<std::int32_t>();
    const int tasks = pool_.threads();
    pool_.run(tasks, [&](std::int64_t task, int) {
      for (std::int64_t token = 0; token < tokens; ++token) {
        if (id[token] % tasks != task) continue;
        const T* from = dout.as<T>() + token * dout.stride(0);
        A* to = dtable.as<A>() + id[token] * dtable.stride(0);
        for (std::int64_t i = 0; i < width; ++i) to[i] += static_cast<A>(from[i]);
      }
    });
  });
}

}  // namespace kintsugi
