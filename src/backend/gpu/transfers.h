#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "backend/backend.h"
#include "backend/gpu/common.h"

namespace kintsugi::gpu {

// Asynchronous copies between page-locked host memory and the device, with one stream per
// direction.
class Transfers {
 public:
  enum class Direction : std::uint8_t { ToDevice, ToHost };

  Transfers();
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Starts a copy after the work queued on `compute` so far.
  Backend::Transfer start(Direction direction, void* destination, const void* source,
                          std::size_t bytes, Stream compute);
  void wait(Backend::Transfer transfer, Stream compute);
  void finish(Backend::Transfer transfer);
  Backend::LinkTotals totals();

 private:
  struct Copy {
    Copy();
    ~Copy();
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    Event ready = nullptr, begin = nullptr, end = nullptr;
    Direction direction = Direction::ToDevice;
    std::size_t bytes = 0;
  };
  // The maximum of copies in unfinished_; beyond it the host waits for the oldest.
  static constexpr std::size_t kMaxUnfinished = 512;

  Stream lane(Direction direction) const { return lanes_[static_cast<std::size_t>(direction)]; }
  std::unique_ptr<Copy> free_copy();
  std::unique_ptr<Copy> take(Backend::Transfer transfer);
  void count(const Copy& copy);

  std::array<Stream, 2> lanes_ = {};
  std::int64_t tickets_ = 0;
  std::unordered_map<std::int64_t, std::unique_ptr<Copy>> pending_;
  std::deque<std::unique_ptr<Copy>> unfinished_;  // waited for but maybe not complete, oldest first
  std::array<Backend::TransferTotals, 2> totals_;
};

}  // namespace kintsugi::gpu
