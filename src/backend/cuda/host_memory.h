#pragma once

#include <cstddef>
#include <map>

#include "tensor/arena.h"

namespace kintsugi::cuda {

// Page-locked memory of the host, which the GPU copies from and to by itself.
class HostMemory final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override;
  void release(void* address, std::size_t bytes) noexcept override;

  bool contains(const void* address) const;
  // On many threads, because there may be a hundred gigabytes of it.
  static void fill(const Tensor& x, double value);

 private:
  struct Block {
    std::size_t bytes;
    bool mapped;  // by us; else by the driver
  };
  std::map<const std::byte*, Block> blocks_;  // by address
};

}  // namespace kintsugi::cuda
