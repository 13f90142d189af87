#pragma once

#include <vector>

#include "optim/state_offload.h"
#include "optim/update_plan.h"

namespace kintsugi {

// The same elements on both sides.
struct OffloadedTensor {
  Tensor host, device;
};

// Updates on the device over a state or gradients in host memory: a piece is updated while the ones
// behind it come and the ones before it go back. A piece's turn can wait until its weights are
// asked for: then pieces travel while the layers before theirs compute.
class StreamedUpdate {
 public:
  // What lies in host memory: `offload`. `ahead`: how many pieces come before their turn.
  StreamedUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
                 const std::vector<UpdatePiece>& pieces, DType precision,
                 const StateOffload& offload, std::size_t ahead);

  // The first pieces may come while the gradients' norm is still being made.
  void begin();
  // After begin(): what the pieces' turns will need. Gradients and scale stay until they are over.
  void start(const UpdateStep& step);
  // Operations queued later see the new weights of the pieces before this one.
  void run_until(std::size_t piece);
  // And all weights and, in host memory, all state.
  void finish();

 private:
  static constexpr std::size_t kLeaving = 2;  // so that what goes back has some time to do so
  // Memory on the device for one piece at a time.
  struct Buffer {
    Tensor master, gradients;
    std::vector<std::vector<Tensor>> slots;  // by rule
    std::vector<Backend::Transfer> coming, going;
  };
  struct Piece {
    std::vector<OffloadedTensor> state, gradients;
    std::vector<UpdateRange> ranges;  // all of it on the device
  };
  void allocate(Arena& arena, const OptimizerState& state, const std::vector<UpdatePiece>& pieces,
                DType precision, const StateOffload& offload);
  static Piece on_device(const UpdatePiece& piece, const OptimizerState& state,
                         const StateOffload& offload, const Buffer& buffer);
  Buffer& buffer(std::size_t piece) { return buffers_[piece % buffers_.size()]; }
  void fetch(std::size_t piece);
  void update(std::size_t piece);

  Backend* backend_;
  std::size_t ahead_;
  std::vector<Buffer> buffers_;
  std::vector<Piece> pieces_;
  UpdateStep step_;       // under way
  std::size_t next_ = 0;  // piece whose turn it is; all of them: none is under way
};

// Updates on the host's cores, where the state is: gradients come if they are not there, rounded
// weights go back.
class HostUpdate {
 public:
  HostUpdate(Backend& backend, Arena& arena, const std::vector<UpdatePiece>& pieces,
             DType precision, const StateOffload& offload);

  // Waits for the gradients. Operations queued later see the new weights.
  void run(const UpdateStep& step);

 private:
  static constexpr std::size_t kBuffers = 4;
  struct Buffer {
    Tensor gradients, weights;  // in host memory
    std::vector<Backend::Transfer> coming, going;
  };
  struct Piece {
    std::vector<OffloadedTensor> coming, weights;
    std::vector<UpdateRange> ranges;  // all of it in host memory
  };
  static Piece on_host(const UpdatePiece& piece, const StateOffload& offload, const Buffer& buffer);
  Buffer& buffer(std::size_t piece) { return buffers_[piece % buffers_.size()]; }
  void fetch(std::size_t piece);
  void update(std::size_t piece, const UpdateStep& step);

  Backend* backend_;
  Backend* host_;
  std::vector<Buffer> buffers_;
  std::vector<Piece> pieces_;
  Tensor scale_;  // (1), in host memory
};

}  // namespace kintsugi
