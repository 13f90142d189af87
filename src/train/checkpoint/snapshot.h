#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"
#include "tensor/host_buffers.h"
#include "train/checkpoint/saved_tensors.h"
#include "train/engine.h"

namespace kintsugi {

// A copy in host memory of everything that this rank writes to a checkpoint, so that the next step
// may change the weights while the copy is written to files.
class Snapshot {
 public:
  static std::size_t bytes_of(Engine& engine);  // that it allocates; also for a planned engine

  explicit Snapshot(Engine& engine);  // the engine must outlive it
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Copies from host memory, and starts the copies from the device. Until wait() or finish(), the
  // weights and the optimizer state must not change.
  void take();
  // Makes operations that are queued on the backend from now on start after the copies.
  void wait();
  void finish();  // blocks until the copies are done

  // The copy of written_elements(). `kind` and `segment` are indexes in saved_kinds() and
  // saved_segments(). Empty if that kind has no such segment.
  Tensor at(std::size_t kind, std::size_t segment) const;

 private:
  Engine& engine_;
  std::vector<SavedKind> kinds_;
  std::vector<StateSegment> segments_;
  HostBuffers memory_;
  std::vector<Tensor> copies_;  // by kind and segment
  std::vector<Backend::Transfer> transfers_;
};

}  // namespace kintsugi
