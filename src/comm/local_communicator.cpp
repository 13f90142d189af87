#include "comm/local_communicator.h"

#include <cstring>

#include "comm/collective_checks.h"

namespace kintsugi {

std::unique_ptr<Communicator> LocalWorld::split(const std::string& name, int, int) {
  return std::make_unique<LocalCommunicator>(name, backend_);
}

Communicator::Work LocalCommunicator::copy(Tensor destination, Tensor source) {
  if (destination.data() == source.data() || source.elements() == 0) return {};
  if (backend_ != nullptr)
    backend_->copy(destination, source.view(destination.shape()));
  else
    std::memcpy(destination.data(), source.data(), source.bytes());
  return {};
}

Communicator::Work LocalCommunicator::all_reduce(Tensor x, ReduceOp) {
  check_contiguous(*this, "all_reduce", x);
  return {};
}

Communicator::Work LocalCommunicator::reduce_scatter(Tensor shard, Tensor full) {
  check_parts(*this, "reduce_scatter", full, shard);
  return copy(shard, full);
}

Communicator::Work LocalCommunicator::all_gather(Tensor full, Tensor shard) {
  check_parts(*this, "all_gather", full, shard);
  return copy(full, shard);
}

Communicator::Work LocalCommunicator::broadcast(Tensor x, int root) {
  check_contiguous(*this, "broadcast", x);
  check_rank(*this, "broadcast", root);
  return {};
}

Communicator::Work LocalCommunicator::all_to_all(Tensor received, Tensor sent,
                                                 const ExchangeCounts& counts) {
  check_exchange(*this, received, sent, counts);
  return copy(received, sent);
}

Communicator::Work LocalCommunicator::send(Tensor, int to) {
  failure("group {}: cannot send to rank {}: the group has one rank", name_, to);
}

Communicator::Work LocalCommunicator::receive(Tensor, int from) {
  failure("group {}: cannot receive from rank {}: the group has one rank", name_, from);
}

void LocalCommunicator::wait(Work work) {
  KINTSUGI_CHECK(work.ticket == 0, "group {}: wait for {}, which was never started", name_,
                 work.ticket);
}

}  // namespace kintsugi
