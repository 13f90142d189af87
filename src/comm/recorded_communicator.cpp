#include "comm/recorded_communicator.h"

namespace kintsugi {

template <class Call>
Communicator::Work RecordedCommunicator::record(Collective kind, const Tensor& x, const Call& call,
                                                int peer) {
  const std::int64_t number =
      recorder_.call(group_, kind, x ? static_cast<std::int64_t>(x.bytes()) : 0, peer);
  const Work work = call();
  pending_[static_cast<std::size_t>(number) % pending_.size()] = {work.ticket, number};
  return work;
}

Communicator::Work RecordedCommunicator::all_reduce(Tensor x, ReduceOp op) {
  return record(Collective::AllReduce, x, [&] { return inner_->all_reduce(x, op); });
}

Communicator::Work RecordedCommunicator::reduce_scatter(Tensor shard, Tensor full) {
  return record(Collective::ReduceScatter, full,
                [&] { return inner_->reduce_scatter(shard, full); });
}

Communicator::Work RecordedCommunicator::all_gather(Tensor full, Tensor shard) {
  return record(Collective::AllGather, full, [&] { return inner_->all_gather(full, shard); });
}

Communicator::Work RecordedCommunicator::broadcast(Tensor x, int root) {
  return record(Collective::Broadcast, x, [&] { return inner_->broadcast(x, root); });
}

// The ranks send different amounts, so no size is recorded: it would look like a disagreement.
Communicator::Work RecordedCommunicator::all_to_all(Tensor received, Tensor sent,
                                                    const ExchangeCounts& counts) {
  return record(Collective::AllToAll, {},
                [&] { return inner_->all_to_all(received, sent, counts); });
}

Communicator::Work RecordedCommunicator::send(Tensor x, int to) {
  return record(
      Collective::Send, x, [&] { return inner_->send(x, to); }, to);
}

Communicator::Work RecordedCommunicator::receive(Tensor x, int from) {
  return record(
      Collective::Receive, x, [&] { return inner_->receive(x, from); }, from);
}

void RecordedCommunicator::wait(Work work) {
  std::int64_t number = 0;
  for (const Pending& pending : pending_)
    if (pending.ticket == work.ticket && pending.number > number) number = pending.number;
  recorder_.begin_wait(group_, number);
  inner_->wait(work);
  recorder_.end_wait(group_);
}

void RecordedCommunicator::barrier() {
  recorder_.begin_wait(group_, recorder_.call(group_, Collective::Barrier, 0));
  inner_->barrier();
  recorder_.end_wait(group_);
}

}  // namespace kintsugi
