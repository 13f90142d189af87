#pragma once

#include <memory>

#include "comm/mpi/exchange.h"

namespace kintsugi {

// The collectives of comm/communicator.h by MPI's own non-blocking ones, which a site's MPI maps to
// its network. Operands are checked already.
std::shared_ptr<Operation> make_all_reduce(MpiGroup& group, Tensor x, ReduceOp op);
std::shared_ptr<Operation> make_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full);
std::shared_ptr<Operation> make_all_gather(MpiGroup& group, Tensor full, Tensor shard);
std::shared_ptr<Operation> make_broadcast(MpiGroup& group, Tensor x, int root);
std::shared_ptr<Operation> make_send(MpiGroup& group, Tensor x, int to);
std::shared_ptr<Operation> make_receive(MpiGroup& group, Tensor x, int from);
std::shared_ptr<Operation> make_barrier(MpiGroup& group);

// The same in groups with rank_order (rank_order.cpp): each part travels straight to the rank that
// sums it, which adds all parts in rank order. MPI promises no order.
std::shared_ptr<Operation> make_ordered_all_reduce(MpiGroup& group, Tensor x, ReduceOp op);
std::shared_ptr<Operation> make_ordered_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full);

}  // namespace kintsugi
