#include "comm/sim/sim_communicator.h"

#include "core/error.h"

namespace kintsugi {

using Transfer = TracedOperation::Transfer;

Communicator::Work SimCommunicator::start(Transfer transfer, const Tensor& x) {
  if (size_ == 1) return {};
  const std::int64_t ticket = ++trace_->tickets;
  trace_->operations.push_back({.kind = TracedOperation::Kind::Collective,
                                .dtype = x.dtype(),
                                .bytes = static_cast<double>(x.bytes()),
                                .transfer = transfer,
                                .group = name_,
                                .ticket = ticket});
  return {ticket};
}

Communicator::Work SimCommunicator::all_reduce(Tensor x, ReduceOp) {
  return start(Transfer::AllReduce, x);
}
Communicator::Work SimCommunicator::reduce_scatter(Tensor, Tensor full) {
  return start(Transfer::ReduceScatter, full);
}
Communicator::Work SimCommunicator::all_gather(Tensor full, Tensor) {
  return start(Transfer::AllGather, full);
}
Communicator::Work SimCommunicator::broadcast(Tensor x, int) {
  return start(Transfer::Broadcast, x);
}
Communicator::Work SimCommunicator::send(Tensor x, int to) {
  KINTSUGI_CHECK(to >= 0 && to < size_, "group {} has no rank {}", name_, to);
  return start(Transfer::Send, x);
}
Communicator::Work SimCommunicator::receive(Tensor x, int from) {
  KINTSUGI_CHECK(from >= 0 && from < size_, "group {} has no rank {}", name_, from);
  return start(Transfer::Receive, x);
}

void SimCommunicator::wait(Work work) {
  if (work.ticket == 0) return;
  trace_->operations.push_back(
      {.kind = TracedOperation::Kind::Wait, .group = name_, .ticket = work.ticket});
}

Groups sim_groups(const Grid& grid, const Place& place, OperationTrace& trace) {
  const auto make = [&](GroupKind kind, int rank, int size) {
    return std::make_unique<SimCommunicator>(to_string(kind), rank, size, trace);
  };
  const int data = place.cp + grid.cp * place.dp, shard = grid.shard();
  const bool end = grid.pp > 1 && (place.pp == 0 || place.pp == grid.pp - 1);
  return Groups{
      .grid = grid,
      .place = place,
      .world = make(GroupKind::World, rank_of(grid, place), grid.world()),
      .host_tp = make(GroupKind::Tp, place.tp, grid.tp),
      .tp = make(GroupKind::Tp, place.tp, grid.tp),
      .cp = make(GroupKind::Cp, place.cp, grid.cp),
      .pp = make(GroupKind::Pp, place.pp, grid.pp),
      .kv = make(GroupKind::Kv, place.tp % grid.kv_copies, grid.kv_copies),
      .tied = make(GroupKind::Tied, end && place.pp > 0 ? 1 : 0, end ? 2 : 1),
      .shard = make(GroupKind::Shard, data % shard, shard),
      .replica = make(GroupKind::Replica, data / shard, grid.data() / shard),
      .copy = make(GroupKind::Copy, place.tp + grid.tp * (data % shard + shard * place.pp),
                   grid.tp * grid.pp * shard)};
}

}  // namespace kintsugi
