#pragma once

#include <array>
#include <vector>

#include "optim/state_offload.h"
#include "optim/update_plan.h"

namespace kintsugi {

// AdamW on the device over a state or gradients in host memory: a piece is updated while the ones
// behind it come and the ones before it go back. A piece's turn can wait until its weights are
// asked for: then pieces travel while the layers before theirs compute.
class StreamedUpdate {
 public:
  // `pieces` must outlive it; none is larger than `most`. What lies in host memory: `offload`.
  // `ahead`: how many come before their turn.
  StreamedUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
                 const std::vector<UpdatePiece>& pieces, std::int64_t most,
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
  struct Slot {
    std::array<Tensor, 3> here;  // master, moments
    Tensor gradients;
    std::array<Backend::Transfer, 3> coming = {}, going = {};
    std::vector<Backend::Transfer> gradients_coming = {};
  };
  Slot& slot(std::size_t piece) { return slots_[piece % slots_.size()]; }
  void fetch(std::size_t piece);
  void update(std::size_t piece);

  Backend* backend_;
  StateOffload offload_;
  std::array<Tensor, 3> state_;  // master, moments
  const std::vector<UpdatePiece>* pieces_;
  std::size_t ahead_;
  std::vector<Slot> slots_;
  UpdateStep step_;       // under way
  std::size_t next_ = 0;  // piece whose turn it is; all of them: none is under way
};

// AdamW on the host's cores, where the state is: gradients come if they are not there, rounded
// weights go back.
class HostUpdate {
 public:
  HostUpdate(Backend& backend, Arena& arena, const OptimizerState& state,
             const std::vector<UpdatePiece>& pieces, std::int64_t most, DType precision,
             const StateOffload& offload);

  // Waits for the gradients. Operations queued later see the new weights.
  void run(const UpdateStep& step);

 private:
  static constexpr std::size_t kSlots = 4;
  struct Slot {
    Tensor gradients, weights;  // in host memory
    std::vector<Backend::Transfer> coming, going;
  };
  Slot& slot(std::size_t piece) { return slots_[piece % slots_.size()]; }
  void fetch(std::size_t piece);
  void update(std::size_t piece, const UpdateStep& step);

  Backend* backend_;
  Backend* host_;
  bool gradients_here_;
  OptimizerState state_;
  const std::vector<UpdatePiece>* pieces_;
  std::vector<Slot> slots_;
  Tensor scale_;  // (1), in host memory
};

}  // namespace kintsugi
