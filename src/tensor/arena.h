#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace kintsugi {

// Where bytes come from: a Backend for real memory, a PlanningAllocator for the question "how
// many?".
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* address, std::size_t bytes) noexcept = 0;
  // Memory of the host that a device reads and writes by itself; the same where the device is the
  // host.
  virtual Allocator& host_memory() { return *this; }
};

// Hands out addresses that must never be touched. Building the engine on it yields the memory plan
// and costs nothing.
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

// Every byte of a run is taken here once, before the first step, under a region and a name.
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
  // Region by region with the largest allocations of each, the host's after the device's: what is
  // printed when a run starts.
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
  std::string rows(Side side) const;  // of the table

  Allocator& allocator_;
  std::vector<Entry> entries_;
};

}  // namespace kintsugi
