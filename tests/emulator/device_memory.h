#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "emulator/race_check.h"

// The memory of an emulated device, which is the host's.
namespace kintsugi::emulator {

// The allocations of the process, which several threads may make.
class DeviceMemory {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 30;

  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > kBytes - used_) return nullptr;
    constexpr std::size_t kAlignment = 256;
    const std::size_t length =
        (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    void* const address = std::aligned_alloc(kAlignment, length);
    if (address == nullptr) return nullptr;
    std::memset(address, 0xff, length);  // NaN, as long as nothing is written
    blocks_[address] = bytes;
    used_ += bytes;
    race_check::register_memory(address, length, "device memory");
    return address;
  }
  void release(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return;
    race_check::forget_memory(address);
    used_ -= found->second;
    blocks_.erase(found);
    std::free(address);
  }
  bool contains(const void* address) const {
    const std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(const_cast<void*>(address));
    if (after == blocks_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return static_cast<const std::byte*>(address) < static_cast<std::byte*>(begin) + bytes;
  }
  std::size_t free() const {
    const std::lock_guard lock(mutex_);
    return kBytes - used_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<void*, std::size_t> blocks_;  // by address
  std::size_t used_ = 0;
};

inline DeviceMemory& memory() {
  static auto* const all = new DeviceMemory;  // outlives every backend
  return *all;
}

}  // namespace kintsugi::emulator
