#pragma once

#include <cstddef>
#include <map>

#include "tensor/arena.h"

namespace kintsugi::gpu {

// Allocates page-locked host memory, which the GPU can copy from and to asynchronously.
class HostMemory final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override;
  void release(void* address, std::size_t bytes) noexcept override;

  bool contains(const void* address) const;
  // Uses many threads, because there may be a hundred gigabytes.
  static void fill(const Tensor& x, double value);

 private:
  struct Block {
    std::size_t bytes;
    bool mapped;  // true: by mmap; false: by the driver
  };
  std::map<const std::byte*, Block> blocks_;  // by address
};

}  // namespace kintsugi::gpu
