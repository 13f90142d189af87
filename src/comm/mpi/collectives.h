#pragma once

#include <cstdint>
#include <memory>

#include "comm/mpi/exchange.h"

namespace kintsugi {

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
