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
Communicator::Work SimCommunicator::all_to_all(Tensor received, Tensor sent,
                                               const ExchangeCounts&) {
  return start(Transfer::AllToAll, received.bytes() > sent.bytes() ? received : sent);
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

Groups sim_groups(const Grid& grid, const Coordinates& coordinates, OperationTrace& trace) {
  return make_groups(grid, coordinates, [&](const GroupSpec& spec, const GroupPosition& position) {
    return std::make_unique<SimCommunicator>(spec.name, position.rank, position.size, trace);
  });
}

}  // namespace kintsugi
