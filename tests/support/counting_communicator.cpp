#include "support/counting_communicator.h"

namespace kintsugi {

double Traffic::bytes() const {
  double sum = 0;
  for (const Entry& entry : entries) sum += entry.bytes;
  return sum;
}

Communicator::Work CountingCommunicator::start(const Call& call) {
  Traffic::Entry& entry = traffic_[call.kind];
  ++entry.calls;
  entry.bytes += ring_bytes(call.kind, static_cast<double>(bytes_of(call)), size());
  return inner_->start(call);
}

void CountingCommunicator::barrier() {
  ++traffic_[Collective::Barrier].calls;
  inner_->barrier();
}

std::unique_ptr<Communicator> CountingWorld::split(const std::string& name, int color, int key) {
  return std::make_unique<CountingCommunicator>(inner_.split(name, color, key), traffic_[name]);
}

void CountingWorld::reset() {
  for (auto& [name, traffic] : traffic_) traffic = {};
}

}  // namespace kintsugi
