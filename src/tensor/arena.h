#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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

}  // namespace kintsugi
