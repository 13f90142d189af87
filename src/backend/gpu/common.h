#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/gpu/runtime.h"
#include "core/error.h"
#include "tensor/tensor.h"

// Host-side helpers of the GPU backend; kernels/device.cuh has those of kernels. Only files in
// backend/gpu include this.

namespace kintsugi::gpu {

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

class Attention;
class Matmul;

// What every kernel launcher needs.
struct Context {
  Stream stream;
  int multiprocessors;
  Workspace& workspace;
  Matmul& matmul;          // has the plans of the vendor's library
  Attention& attention;    // likewise
  bool warpgroups;         // Traits::warpgroups
  bool overlaps_launches;  // the GPU has programmatic dependent launch (kernels/launch.cuh)
};

// Allocates device memory. Failure names the size and how much is free.
void* device_allocate(std::size_t bytes);

inline bool aligned16(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace kintsugi::gpu
