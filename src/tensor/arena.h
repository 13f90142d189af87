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

// Every byte of a run is taken here once, before the first step, under a region and a name.
class Arena {
 public:
  explicit Arena(Allocator& allocator) : allocator_(allocator) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Tensor allocate(Region region, std::string name, DType dtype, Shape shape);

  std::size_t bytes(Region region) const;
  std::size_t total_bytes() const;
  // Region by region with the largest allocations of each: what is printed when a run starts.
  std::string table() const;

 private:
  struct Entry {
    Region region;
    std::string name;
    void* address;
    std::size_t bytes;
  };
  Allocator& allocator_;
  std::vector<Entry> entries_;
};

}  // namespace kintsugi
