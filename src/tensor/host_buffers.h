#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

// Page-aligned buffers of equal size in Allocator::host_memory() (page-locked for CUDA), for
// staging data between files and a device.
class HostBuffers {
 public:
  static constexpr std::size_t kPage = 4096;

  HostBuffers(Allocator& device, std::size_t count, std::size_t bytes)
      : memory_(device.host_memory()),
        stride_((bytes + kPage - 1) / kPage * kPage),
        count_(count),
        address_(memory_.allocate(total())) {}
  ~HostBuffers() { memory_.release(address_, total()); }
  HostBuffers(const HostBuffers&) = delete;
  HostBuffers& operator=(const HostBuffers&) = delete;

  std::size_t count() const { return count_; }
  std::byte* operator[](std::size_t i) const {
    const auto address = reinterpret_cast<std::uintptr_t>(address_);
    const std::size_t to_page = (kPage - address % kPage) % kPage;
    return static_cast<std::byte*>(address_) + to_page + i * stride_;
  }

 private:
  std::size_t total() const { return count_ * stride_ + kPage; }

  Allocator& memory_;
  std::size_t stride_, count_;
  void* address_;
};

}  // namespace kintsugi
