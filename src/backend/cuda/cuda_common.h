#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "tensor/tensor.h"

// What every file of the CUDA world shares on the host side; device.cuh adds what kernels share.
// Only files below backend/cuda include this.

namespace kintsugi::cuda {

using Stream = cudaStream_t;

// Throws Failure with the expression, the place and CUDA's own words.
[[noreturn]] void cuda_failed(cudaError_t status, const char* expression, const char* file,
                              int line);

}  // namespace kintsugi::cuda

// Every CUDA runtime call goes through this.
#define KINTSUGI_CUDA(expression)                                                      \
  do {                                                                                 \
    const cudaError_t kintsugi_status = (expression);                                  \
    if (kintsugi_status != cudaSuccess) [[unlikely]]                                   \
      ::kintsugi::cuda::cuda_failed(kintsugi_status, #expression, __FILE__, __LINE__); \
  } while (false)

// Right after every kernel launch.
#define KINTSUGI_LAUNCHED() KINTSUGI_CUDA(cudaGetLastError())

namespace kintsugi::cuda {

// Scratch memory of one stream: operations borrow its beginning, one after the other. It only ever
// grows, and never while the stream is being captured; memory that a captured graph points to is
// kept until the end.
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

// What a launcher needs to know about where it runs.
struct Context {
  Stream stream;
  int multiprocessors;
  Workspace& workspace;
  Matmul& matmul;            // the plans of cuBLASLt
  CudaAttention& attention;  // and of cuDNN
};

bool is_capturing(Stream stream);

// Device memory, or Failure with a sentence that says how much was asked and how much is free.
void* device_allocate(std::size_t bytes);

inline bool aligned16(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace kintsugi::cuda
