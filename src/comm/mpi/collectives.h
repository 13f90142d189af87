#pragma once

#include <cstdint>
#include <memory>

#include "comm/mpi/exchange.h"

namespace kintsugi {

// Scratch memory of reductions that cannot work in place; larger tensors are reduced in blocks.
inline constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20;

// The collectives of comm/communicator.h, implemented with MPI's non-blocking collectives, which
// the MPI library optimizes for its network. The caller has checked the operands.
std::shared_ptr<Operation> make_all_reduce(MpiGroup& group, Tensor x, ReduceOp op);
std::shared_ptr<Operation> make_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full);
std::shared_ptr<Operation> make_all_gather(MpiGroup& group, Tensor full, Tensor shard);
std::shared_ptr<Operation> make_broadcast(MpiGroup& group, Tensor x, int root);
std::shared_ptr<Operation> make_all_to_all(MpiGroup& group, Tensor received, Tensor sent,
                                           const ExchangeCounts& counts);
std::shared_ptr<Operation> make_send(MpiGroup& group, Tensor x, int to);
std::shared_ptr<Operation> make_receive(MpiGroup& group, Tensor x, int from);
std::shared_ptr<Operation> make_barrier(MpiGroup& group);

// For groups with rank_order (rank_order.cpp): each shard is sent directly to the rank that reduces
// it, which adds all of them in rank order. MPI does not guarantee an order.
std::shared_ptr<Operation> make_ordered_all_reduce(MpiGroup& group, Tensor x, ReduceOp op);
std::shared_ptr<Operation> make_ordered_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full);

}  // namespace kintsugi
