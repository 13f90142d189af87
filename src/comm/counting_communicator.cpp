#include "comm/counting_communicator.h"

#include "comm/collective_checks.h"

namespace kintsugi {

double Traffic::bytes() const {
  double sum = 0;
  for (const Entry& entry : entries) sum += entry.bytes;
  return sum;
}

void CountingCommunicator::count(Collective kind, std::size_t bytes) {
  Traffic::Entry& entry = traffic_[kind];
  ++entry.calls;
  entry.bytes += ring_bytes(kind, static_cast<double>(bytes), size());
}

Communicator::Work CountingCommunicator::all_reduce(Tensor x, ReduceOp op) {
  count(Collective::AllReduce, x.bytes());
  return inner_->all_reduce(x, op);
}

Communicator::Work CountingCommunicator::reduce_scatter(Tensor shard, Tensor full) {
  count(Collective::ReduceScatter, full.bytes());
  return inner_->reduce_scatter(shard, full);
}

Communicator::Work CountingCommunicator::all_gather(Tensor full, Tensor shard) {
  count(Collective::AllGather, full.bytes());
  return inner_->all_gather(full, shard);
}

Communicator::Work CountingCommunicator::broadcast(Tensor x, int root) {
  count(Collective::Broadcast, x.bytes());
  return inner_->broadcast(x, root);
}

Communicator::Work CountingCommunicator::all_to_all(Tensor received, Tensor sent,
                                                    const ExchangeCounts& counts) {
  count(Collective::AllToAll, bytes_to_others(*this, sent, counts));
  return inner_->all_to_all(received, sent, counts);
}

Communicator::Work CountingCommunicator::send(Tensor x, int to) {
  count(Collective::Send, x.bytes());
  return inner_->send(x, to);
}

Communicator::Work CountingCommunicator::receive(Tensor x, int from) {
  count(Collective::Receive, x.bytes());
  return inner_->receive(x, from);
}

void CountingCommunicator::barrier() {
  count(Collective::Barrier, 0);
  inner_->barrier();
}

std::unique_ptr<Communicator> CountingWorld::split(const std::string& name, int color, int key) {
  return std::make_unique<CountingCommunicator>(inner_.split(name, color, key), traffic_[name]);
}

void CountingWorld::reset() {
  for (auto& [name, traffic] : traffic_) traffic = {};
}

}  // namespace kintsugi
