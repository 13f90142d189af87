// GELU in the tanh form: x/2 (1 + tanh u) = x * sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"

namespace kintsugi::cuda {
namespace {

constexpr double kTwiceRoot = 1.5957691216057307118;  // 2 sqrt(2/pi)
constexpr double kCubic = 0.044715;

template <class T>
__device__ inline Gate<T> gate_of(Acc<T> x) {
  using A = Acc<T>;
  return Gate<T>(A(kTwiceRoot) * (x + A(kCubic) * x * x * x));
}

template <class T, int N>
__global__ void __launch_bounds__(256) forward_kernel(T* out, const T* x, std::int64_t packs) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, N> in = load<N>(x + i * N);
  Pack<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const Acc<T> v = up(in.v[k]);
    result.v[k] = down<T>(v * gate_of<T>(v).on);
  }
  store(out + i * N, result);
}

template <class T, int N>
__global__ void __launch_bounds__(256)
    backward_kernel(T* dx, const T* dout, const T* x, std::int64_t packs) {
  using A = Acc<T>;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const Pack<T, N> in = load<N>(x + i * N), gradient = load<N>(dout + i * N);
  Pack<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A v = up(in.v[k]);
    const Gate<T> gate = gate_of<T>(v);
    const A slope = A(kTwiceRoot) * (A(1) + A(3 * kCubic) * v * v);
    result.v[k] = down<T>(up(gradient.v[k]) * (gate.on + v * gate.on * gate.off * slope));
  }
  store(dx + i * N, result);
}

template <class T, int N>
void launch_forward(const Context& context, T* out, const T* x, std::int64_t packs) {
  forward_kernel<T, N><<<flat_blocks(packs), 256, 0, context.stream>>>(out, x, packs);
  KINTSUGI_LAUNCHED();
}

template <class T, int N>
void launch_backward(const Context& context, T* dx, const T* dout, const T* x, std::int64_t packs) {
  backward_kernel<T, N><<<flat_blocks(packs), 256, 0, context.stream>>>(dx, dout, x, packs);
  KINTSUGI_LAUNCHED();
}

}  // namespace

void gelu_forward(const Context& context, Tensor out, Tensor x) {
  KINTSUGI_CHECK(out.contiguous() && x.contiguous() && out.elements() == x.elements(),
                 "gelu of {} to {}", to_string(x.shape()), to_string(out.shape()));
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    T *to = data_of<T>(out), *from = data_of<T>(x);
    if (aligned16(to) && aligned16(from) && x.elements() % N == 0)
      launch_forward<T, N>(context, to, from, x.elements() / N);
    else
      launch_forward<T, 1>(context, to, from, x.elements());
  });
}

void gelu_backward(const Context& context, Tensor dx, Tensor dout, Tensor x) {
  KINTSUGI_CHECK(dx.contiguous() && dout.contiguous() && x.contiguous() &&
                     dx.elements() == x.elements() && dout.elements() == x.elements(),
                 "gelu of {}, its gradient {}", to_string(x.shape()), to_string(dout.shape()));
  if (x.elements() == 0) return;
  visit_device_float(x.dtype(), [&]<class T>() {
    constexpr int N = kVecSize<T>;
    T *to = data_of<T>(dx), *gradient = data_of<T>(dout), *from = data_of<T>(x);
    if (aligned16(to) && aligned16(gradient) && aligned16(from) && x.elements() % N == 0)
      launch_backward<T, N>(context, to, gradient, from, x.elements() / N);
    else
      launch_backward<T, 1>(context, to, gradient, from, x.elements());
  });
}

}  // namespace kintsugi::cuda
