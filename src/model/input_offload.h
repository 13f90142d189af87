#pragma once

#include <array>

#include "backend/backend.h"

namespace kintsugi {

// A few device buffers that blocks' inputs pass through on their way to host memory and back. A
// block always has the same one; blocks that are kBuffers apart share it.
class InputOffload {
 public:
  InputOffload(Backend& backend, Arena& arena, DType dtype, Shape shape);

  Tensor buffer(int block) const { return at(block).here; }
  // Before the buffer is written: its last content has left.
  void reclaim(int block);
  // After the block's forward.
  void send(int block, Tensor host);
  // Ahead of the block's backward; behind everything queued so far.
  void fetch(int block, Tensor host);
  // Before its backward.
  void receive(int block);

 private:
  static constexpr int kBuffers = 3;  // one comes or goes, one is read, one written
  struct Buffer {
    Tensor here;
    Backend::Transfer going = {}, coming = {};
  };
  Buffer& at(int block) { return buffers_[static_cast<std::size_t>(block % kBuffers)]; }
  const Buffer& at(int block) const { return buffers_[static_cast<std::size_t>(block % kBuffers)]; }

  Backend* backend_;
  std::array<Buffer, kBuffers> buffers_;
};

}  // namespace kintsugi
