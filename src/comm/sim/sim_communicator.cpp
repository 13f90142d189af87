#include "comm/sim/sim_communicator.h"

namespace kintsugi {

Communicator::Work SimCommunicator::start(const Call& call) {
  if (size() == 1) return {};
  const Tensor &received = call.destination, &sent = call.source;
  const bool receives_more = call.kind == Collective::AllToAll && received.bytes() > sent.bytes();
  const Tensor& x = receives_more ? received : call.whole();
  const std::int64_t ticket = ++trace_->tickets;
  trace_->operations.push_back({.kind = TracedOperation::Kind::Collective,
                                .dtype = x.dtype(),
                                .bytes = static_cast<double>(x.bytes()),
                                .collective = call.kind,
                                .group = name(),
                                .ticket = ticket});
  return {ticket};
}

void SimCommunicator::wait(Work work) {
  if (work.ticket == 0) return;
  trace_->operations.push_back(
      {.kind = TracedOperation::Kind::Wait, .group = name(), .ticket = work.ticket});
}

Groups sim_groups(const Grid& grid, const Coordinates& coordinates, OperationTrace& trace) {
  return make_groups(
      grid, coordinates, [&](const GroupSpec& spec, const GroupMembership& position) {
        return std::make_unique<SimCommunicator>(spec.name, position.rank, position.size, trace);
      });
}

}  // namespace kintsugi
