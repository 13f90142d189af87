#pragma once

#include <array>

#include "backend/backend.h"

namespace kintsugi {

// Device buffers through which block inputs are copied to host memory and back. Blocks share
// kBuffers buffers in turn: block i always uses buffer i % kBuffers.
class InputOffload {
 public:
  InputOffload(Backend& backend, Arena& arena, DType dtype, Shape shape);

  Tensor buffer(int block) const { return at(block).tensor; }
  // Waits until the buffer can be overwritten. Call before writing to it.
  void reclaim(int block);
  // Starts the copy to host memory. Call after the block's forward.
  void send(int block, Tensor host);
  // Starts the copy back, after all operations queued so far. Call ahead of the block's backward.
  void fetch(int block, Tensor host);
  // Waits for the copy back. Call before the block's backward.
  void receive(int block);

 private:
  static constexpr int kBuffers = 3;  // one is being copied, one read, one written
  struct Buffer {
    Tensor tensor;
    Backend::Transfer to_host = {}, to_device = {};
  };
  Buffer& at(int block) { return buffers_[static_cast<std::size_t>(block % kBuffers)]; }
  const Buffer& at(int block) const { return buffers_[static_cast<std::size_t>(block % kBuffers)]; }

  Backend* backend_;
  std::array<Buffer, kBuffers> buffers_;
};

}  // namespace kintsugi
