#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/progress_thread.h"

namespace kintsugi {

void check_mpi(int code, const char* call);  // throws Failure with MPI's message

// Shared by the operations of a communicator. Collectives run one at a time, so they can share
// `scratch`.
struct MpiGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  bool rank_order = false;  // reduce in rank order
  std::vector<std::byte> scratch = {};

  std::byte* scratch_of(std::size_t bytes) {
    if (scratch.size() < bytes) scratch.resize(bytes);
    return scratch.data();
  }
};

inline constexpr int kCollectiveTag = 1;
inline constexpr int kMessageTag = 2;

// An operation made of rounds of non-blocking MPI calls, with computation between the rounds.
class Exchange : public Operation {
 public:
  Exchange(MpiGroup& group, int tag) : group_(group), tag_(tag) {}
  bool advance() final;

 protected:
  // Called when the calls of the previous round are done. Starts the next round with send(),
  // receive() and request(), or returns false if there is none. A round may be empty.
  virtual bool next_round() = 0;

  void send(const void* data, std::int64_t bytes, int to);
  void receive(void* data, std::int64_t bytes, int from);
  MPI_Request* request() {
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }  // for any other MPI call
  MpiGroup& group() const { return group_; }

 private:
  MpiGroup& group_;
  const int tag_;
  std::vector<MPI_Request> requests_;
};

// MPI datatype and operation. MPI's predefined ones where possible, so that networks with
// in-network reduction can use it. Our own for 16-bit floats, which are added in float and rounded
// after each addition, and for the maximum of floats, which must be NaN if any value is.
struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
};
// Call it in the thread that makes the MPI calls, after MPI_Init.
Reduction mpi_reduction(DType dtype, ReduceOp op);

// Scratch memory of reductions that cannot work in place; larger tensors are reduced in blocks.
inline constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20;

// The collectives of comm/communicator.h, implemented with MPI's non-blocking collectives, which
// the MPI library optimizes for its network. The caller has checked the operands.
std::shared_ptr<Operation> make_operation(MpiGroup& group, const Communicator::Call& call);

// For groups with rank_order (rank_order.cpp): each shard is sent directly to the rank that reduces
// it, which adds all of them in rank order. MPI does not guarantee an order.
std::shared_ptr<Operation> make_ordered_all_reduce(MpiGroup& group, Tensor x, ReduceOp op);
std::shared_ptr<Operation> make_ordered_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full);

}  // namespace kintsugi
