// One token of each of several sequences through retention: the update of a state and its output in
// one pass over the state.
#include "backend/gpu/kernels.h"
#include "backend/gpu/kernels/device.cuh"
#include "backend/gpu/kernels/launch.cuh"
#include "backend/gpu/kernels/retention.cuh"

namespace kintsugi::gpu {
namespace {

constexpr int kLanes = 32, kTeams = 8;

// (tokens, heads, dim)
template <class T>
struct TokenView {
  explicit TokenView(const Tensor& x)
      : base(data_of<std::remove_const_t<T>>(x)), token(x.stride(0)), head(x.stride(1)) {}
  __device__ T* at(int t, int h) const { return base + t * token + h * head; }
  bool aligned() const { return aligned16(base) && (token | head) * sizeof(T) % 16 == 0; }
  T* base;
  std::int64_t token, head;
};

template <class T>
struct Step {
  TokenView<T> out;
  TokenView<const T> q, k, v;
  Acc<T>* states;
  const std::int32_t *slots, *positions;
  const float* decays;
  double scale;
  int heads, k_dim, v_dim;
};

// Blocks (token and head, 32 N columns); the warps of a block split the rows of the state.
template <class T, int N>
__global__ void __launch_bounds__(kLanes* kTeams) step_kernel(Step<T> p) {
  using A = Acc<T>;
  KINTSUGI_SHARED(A[kTeams][kLanes * N], partial);
  allow_next();
  wait_for_previous();
  const int token = static_cast<int>(blockIdx.x) / p.heads,
            h = static_cast<int>(blockIdx.x) % p.heads;
  const int lane = static_cast<int>(threadIdx.x), team = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.y) * kLanes * N + lane * N;
  const std::int32_t slot = p.slots[token], position = p.positions[token];
  if (slot < 0) return;
  const double decay = p.decays[h];
  A sum[N] = {};
  if (column < p.v_dim) {
    const T *q = p.q.at(token, h), *k = p.k.at(token, h);
    const Pack<T, N> value = load<N>(p.v.at(token, h) + column);
    A* state =
        p.states + (static_cast<std::int64_t>(slot) * p.heads + h) * p.k_dim * p.v_dim + column;
#pragma unroll 4
    for (int i = team; i < p.k_dim; i += kTeams) {
      A* row = state + static_cast<std::int64_t>(i) * p.v_dim;
      Pack<A, N> now = {};
      if (position > 0) now = load<N>(row);
      const A key = up(k[i]), query = up(q[i]);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        now.v[n] = static_cast<A>(decay) * now.v[n] + key * up(value.v[n]);
        sum[n] += query * now.v[n];
      }
      store(row, now);
    }
  }
#pragma unroll
  for (int n = 0; n < N; ++n) partial[team][lane * N + n] = sum[n];
  __syncthreads();
  if (team != 0 || column >= p.v_dim) return;
  const A factor = static_cast<A>(row_factor(p.scale, decay, position));
  Pack<T, N> result;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    A total = 0;
    for (int other = 0; other < kTeams; ++other) total += partial[other][lane * N + n];
    result.v[n] = down<T>(factor * total);
  }
  store(p.out.at(token, h) + column, result);
}

}  // namespace

void retention_step(const Context& context, Tensor out, Tensor states, Tensor q, Tensor k, Tensor v,
                    Tensor slots, Tensor positions, const RetentionOptions& options) {
  const std::int64_t tokens = q.extent(0), heads = q.extent(1);
  if (out.elements() == 0) return;
  visit_device_float(q.dtype(), [&]<class T>() {
    const Step<T> p = {.out = TokenView<T>(out),
                       .q = TokenView<const T>(q),
                       .k = TokenView<const T>(k),
                       .v = TokenView<const T>(v),
                       .states = data_of<Acc<T>>(states),
                       .slots = data_of<std::int32_t>(slots),
                       .positions = data_of<std::int32_t>(positions),
                       .decays = data_of<float>(options.decays),
                       .scale = options.scale,
                       .heads = static_cast<int>(heads),
                       .k_dim = static_cast<int>(q.extent(2)),
                       .v_dim = static_cast<int>(v.extent(2))};
    constexpr int N = 16 / static_cast<int>(sizeof(Acc<T>));
    const bool aligned =
        p.v_dim % N == 0 && aligned16(p.states) && p.out.aligned() && p.v.aligned();
    const dim3 blocks(static_cast<unsigned>(tokens * heads),
                      static_cast<unsigned>(ceil_div(p.v_dim, kLanes * (aligned ? N : 1))));
    launch_overlapped(context, aligned ? step_kernel<T, N> : step_kernel<T, 1>, blocks,
                      dim3(kLanes, kTeams), 0, p);
  });
}

}  // namespace kintsugi::gpu
