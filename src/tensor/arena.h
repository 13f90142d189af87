#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace kintsugi {

// A Backend allocates real memory; a PlanningAllocator only counts bytes.
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* address, std::size_t bytes) noexcept = 0;
  // Allocates host memory that the device can access directly. Returns itself if the device is the
  // host.
  virtual Allocator& host_memory() { return *this; }
};

// Returns addresses that must not be accessed. Constructing an engine with it gives the memory plan
// without allocating memory.
class PlanningAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override;
  void release(void*, std::size_t) noexcept override {}

 private:
  std::uintptr_t next_ = 4096;
};

enum class Region : std::uint8_t {
  Weights,
  Gradients,
  Optimizer,
  Activations,
  Workspace,
  Communication
};
inline constexpr int kRegions = 6;
std::string_view to_string(Region region);

enum class Side : std::uint8_t { Device, Host };  // whose memory

// Allocates all memory of a run before the first step. Each allocation has a region and a name.
class Arena {
 public:
  explicit Arena(Allocator& allocator) : allocator_(allocator) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Tensor allocate(Region region, std::string name, DType dtype, Shape shape,
                  Side side = Side::Device);

  std::size_t bytes(Region region, Side side = Side::Device) const;
  std::size_t total_bytes(Side side = Side::Device) const;
  // The sum of all allocations of the same region and name.
  struct Allocation {
    Region region;
    std::string name;
    std::size_t bytes;
  };
  std::vector<Allocation> list(Side side) const;  // the largest first
  // The memory plan that is printed at start: for each region its size and largest allocations,
  // device memory first, then host memory.
  std::string table() const;

 private:
  struct Entry {
    Side side;
    Region region;
    std::string name;
    void* address;
    std::size_t bytes;
  };
  Allocator& allocator(Side side) const {
    return side == Side::Host ? allocator_.host_memory() : allocator_;
  }
  std::string table_rows(Side side) const;

  Allocator& allocator_;
  std::vector<Entry> entries_;
};

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
