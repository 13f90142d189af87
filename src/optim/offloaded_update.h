#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "optim/optimizer_state.h"

namespace kintsugi {

// Where offloaded optimizer state is updated. Auto: all ranks measure both in the first steps and
// take the faster one.
enum class UpdateLocation : std::uint8_t { Auto, Device, Host };
std::string_view to_string(UpdateLocation location);

struct StateOffload {
  bool on = false;         // optimizer state is stored in host memory
  bool gradients = false;  // gradients too, except for one or two layers
  UpdateLocation update = UpdateLocation::Auto;
  std::int64_t block_elements = std::int64_t{1} << 22;  // elements of state per transfer
};

// The copies of the same elements in host memory and on the device.
struct OffloadedTensor {
  Tensor host, device;
};

// Updates on the device with optimizer state or gradients in host memory. One block is updated
// while the next blocks are copied to the device and the previous ones back to the host. The update
// of a block may be deferred until its weights are needed: its copies then overlap with the forward
// of the layers before.
class StreamedUpdate {
 public:
  // `offload` says what is stored in host memory. `ahead` is the number of blocks to prefetch.
  StreamedUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
                 const std::vector<UpdateBlock>& blocks, DType precision,
                 const StateOffload& offload, std::size_t ahead);

  // Prefetches the first blocks, for example while the gradient norm is still being computed.
  void begin();
  // Called after begin(). Gradients and scale must not change until finish() returns.
  void start(const UpdateStep& step);
  // Updates the blocks before `block`. Operations queued later see their new weights.
  void run_until(std::size_t block);
  // Updates the remaining blocks. Operations and copies queued later see all new weights and state.
  void finish();

 private:
  static constexpr std::size_t kLeaving = 2;  // more buffers, so that copies to the host have time
  // Device memory for one block at a time.
  struct Buffer {
    Tensor master, ema, gradients;
    std::vector<std::vector<Tensor>> slots;  // by rule
    std::vector<Backend::Transfer> to_device, to_host;
  };
  struct Block {
    std::vector<OffloadedTensor> state, gradients;
    std::vector<UpdateRange> ranges;  // all tensors on the device
  };
  void allocate(Arena& arena, const OptimizerState& state, const std::vector<UpdateBlock>& blocks,
                DType precision, const StateOffload& offload);
  static Block on_device(const UpdateBlock& block, const OptimizerState& state,
                         const StateOffload& offload, const Buffer& buffer);
  Buffer& buffer(std::size_t block) { return buffers_[block % buffers_.size()]; }
  void fetch(std::size_t block);
  void update(std::size_t block);

  Backend* backend_;
  std::size_t ahead_;
  std::vector<Buffer> buffers_;
  std::vector<Block> blocks_;
  UpdateStep step_;       // in progress
  std::size_t next_ = 0;  // block to update next; blocks_.size(): no update is in progress
};

// Updates on the host's cores, with the state in host memory. Gradients are copied to the host
// unless they are offloaded; rounded weights are copied back to the device.
class HostUpdate {
 public:
  HostUpdate(Backend& backend, Arena& arena, const std::vector<UpdateBlock>& blocks,
             DType precision, const StateOffload& offload);

  // Blocks until the gradients are on the host. Operations queued later see the new weights.
  void run(const UpdateStep& step);

 private:
  static constexpr std::size_t kBuffers = 4;
  struct Buffer {
    Tensor gradients, weights;  // in host memory
    std::vector<Backend::Transfer> to_host, to_device;
  };
  struct Block {
    std::vector<OffloadedTensor> to_host, weights;
    std::vector<UpdateRange> ranges;  // all tensors in host memory
  };
  static Block on_host(const UpdateBlock& block, const StateOffload& offload, const Buffer& buffer);
  Buffer& buffer(std::size_t block) { return buffers_[block % buffers_.size()]; }
  void fetch(std::size_t block);
  void update(std::size_t block, const UpdateStep& step);

  Backend* backend_;
  Backend* host_;
  std::vector<Buffer> buffers_;
  std::vector<Block> blocks_;
  Tensor scale_;  // (1), in host memory
};

}  // namespace kintsugi
