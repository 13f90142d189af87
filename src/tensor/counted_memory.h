#pragma once

#include <algorithm>
#include <cstddef>
#include <new>

#include "tensor/arena.h"

namespace kintsugi {

// Host memory that counts what is allocated from it, for code whose memory must stay bounded.
class CountedMemory final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    void* const address = ::operator new(bytes);
    peak_ = std::max(peak_, used_ += bytes);
    return address;
  }
  void release(void* address, std::size_t bytes) noexcept override {
    used_ -= bytes;
    ::operator delete(address);
  }
  std::size_t peak_bytes() const { return peak_; }

 private:
  std::size_t used_ = 0, peak_ = 0;
};

}  // namespace kintsugi
