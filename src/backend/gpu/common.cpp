#include "backend/gpu/common.h"

#include <algorithm>

#include "core/units.h"

namespace kintsugi::gpu {

void* device_allocate(std::size_t bytes) {
  if (void* const address = try_allocate(bytes)) return address;
  const auto [free, total] = memory_info();
  failure(
      "out of GPU memory: cannot allocate {}, {} of {} are free; use a smaller micro-batch, "
      "recompute or 16-bit moments",
      format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(free)),
      format_bytes(static_cast<double>(total)));
}

Workspace::Workspace(std::size_t bytes) { grow(bytes); }

Workspace::~Workspace() {
  for (const Block& block : blocks_) release(block.address);
}

void* Workspace::get(std::size_t bytes, Stream stream) {
  const bool capturing = is_capturing(stream);
  const std::size_t present = blocks_.empty() ? 0 : blocks_.back().bytes;
  if (bytes > present || blocks_.empty()) {
    KINTSUGI_CHECK(
        !capturing,
        "{} of workspace are needed while a graph is captured, but only {} are allocated: run "
        "the same step once before capturing it",
        format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(present)));
    if (!blocks_.empty() && !blocks_.back().captured) {
      release(blocks_.back().address);  // waits for kernels that still use it
      blocks_.pop_back();
    }
    grow(bytes);
  }
  blocks_.back().captured |= capturing;
  return blocks_.back().address;
}

void Workspace::grow(std::size_t bytes) {
  blocks_.reserve(blocks_.size() + 1);
  blocks_.push_back({device_allocate(bytes), bytes, false});
}

std::size_t Workspace::bytes() const {
  std::size_t sum = 0;
  for (const Block& block : blocks_) sum += block.bytes;
  return sum;
}

}  // namespace kintsugi::gpu
