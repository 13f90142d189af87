#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "tensor/tensor.h"

// Host-side helpers of the CUDA backend; device.cuh has those of kernels. Only files in
// backend/cuda include this.

namespace kintsugi::cuda {

using Stream = cudaStream_t;

// Throws Failure with the expression, file and line, and CUDA's error message.
[[noreturn]] void cuda_failed(cudaError_t status, const char* expression, const char* file,
                              int line);

}  // namespace kintsugi::cuda

// Checks a CUDA runtime call; every call is wrapped in this.
#define KINTSUGI_CUDA(expression)                                                      \
  do {                                                                                 \
    const cudaError_t kintsugi_status = (expression);                                  \
    if (kintsugi_status != cudaSuccess) [[unlikely]]                                   \
      ::kintsugi::cuda::cuda_failed(kintsugi_status, #expression, __FILE__, __LINE__); \
  } while (false)

// Checks a kernel launch; follows every launch.
#define KINTSUGI_LAUNCHED() KINTSUGI_CUDA(cudaGetLastError())

namespace kintsugi::cuda {

// Scratch memory of one stream. Every operation uses it from its beginning, in stream order. It
// only grows, and never while the stream is captured. Memory that a captured graph points to is
// kept until the destructor.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* get(std::size_t bytes, Stream stream);
  template <class T>
  T* get(std::size_t elements, Stream stream) {
    return static_cast<T*>(get(elements * sizeof(T), stream));
  }
  std::size_t bytes() const;

 private:
  struct Block {
    void* address;
    std::size_t bytes;
    bool captured;
  };
  void grow(std::size_t bytes);
  std::vector<Block> blocks_;  // the last one is in use
};

class CudaAttention;
class Matmul;

// What every kernel launcher needs.
struct Context {
  Stream stream;
  int multiprocessors;
  Workspace& workspace;
  Matmul& matmul;            // has the plans of cuBLASLt
  CudaAttention& attention;  // has the plans of cuDNN
  bool overlaps_launches;    // the GPU has programmatic dependent launch (launch.cuh)
};

bool is_capturing(Stream stream);

// Allocates device memory. Failure names the size and how much is free.
void* device_allocate(std::size_t bytes);

inline bool aligned16(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace kintsugi::cuda
