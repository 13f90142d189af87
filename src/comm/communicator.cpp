#include "comm/communicator.h"

#include <cstring>
#include <numeric>

namespace kintsugi {

void Communicator::check(const Call& call) const {
  const char* what = to_string(call.kind);
  for (const Tensor* x : {&call.destination, &call.source})
    KINTSUGI_CHECK(x->contiguous(), "{} in group {}: a tensor {} is not contiguous", what, name_,
                   to_string(x->shape()));
  switch (call.kind) {
    case Collective::ReduceScatter:
    case Collective::AllGather: {
      const Tensor& full = call.whole();
      const Tensor& shard = &full == &call.source ? call.destination : call.source;
      KINTSUGI_CHECK(full.dtype() == shard.dtype(), "{} in group {}: full is {}, but shard is {}",
                     what, name_, to_string(full.dtype()), to_string(shard.dtype()));
      KINTSUGI_CHECK(full.elements() == shard.elements() * size_,
                     "{} in group {}: {} elements are not {} shards of {}", what, name_,
                     full.elements(), size_, shard.elements());
      break;
    }
    case Collective::Send:
    case Collective::Receive:
      KINTSUGI_CHECK(call.peer != rank_, "{} in group {}: rank {} is the caller itself", what,
                     name_, call.peer);
      [[fallthrough]];
    case Collective::Broadcast:
      KINTSUGI_CHECK(call.peer >= 0 && call.peer < size_,
                     "{} in group {}: there is no rank {}, the group has {}", what, name_,
                     call.peer, size_);
      break;
    case Collective::AllToAll:
      check_exchange(call);
      break;
    case Collective::AllReduce:
    case Collective::Barrier:
      break;
  }
}

void Communicator::check_exchange(const Call& call) const {
  const Tensor &received = call.destination, &sent = call.source;
  KINTSUGI_CHECK(received.dtype() == sent.dtype(), "all_to_all in group {}: {} is received as {}",
                 name_, to_string(sent.dtype()), to_string(received.dtype()));
  const auto check = [&](const char* what, const std::vector<std::int64_t>& by_rank, Tensor x) {
    const std::int64_t sum = std::accumulate(by_rank.begin(), by_rank.end(), std::int64_t{0});
    KINTSUGI_CHECK(static_cast<int>(by_rank.size()) == size_ && sum == x.elements(),
                   "all_to_all in group {}: {} elements are {}, the counts of {} ranks say {}",
                   name_, x.elements(), what, by_rank.size(), sum);
  };
  check("received", call.counts->received, received);
  check("sent", call.counts->sent, sent);
}

Communicator::Work Communicator::all_to_all(Tensor received, Tensor sent) {
  KINTSUGI_CHECK(sent.elements() % size_ == 0,
                 "all_to_all in group {}: {} elements are not {} equal parts", name_,
                 sent.elements(), size_);
  const std::vector<std::int64_t> equal(static_cast<std::size_t>(size_), sent.elements() / size_);
  return all_to_all(received, sent, {.sent = equal, .received = equal});
}

std::size_t Communicator::bytes_of(const Call& call) const {
  const std::size_t bytes = call.whole() ? call.whole().bytes() : 0;
  if (call.kind != Collective::AllToAll) return bytes;
  const std::int64_t kept = call.counts->sent[rank_];
  return bytes - static_cast<std::size_t>(kept) * size_of(call.source.dtype());
}

std::unique_ptr<Communicator> LocalWorld::split(const std::string& name, int, int) {
  return std::make_unique<LocalCommunicator>(name, backend_);
}

Communicator::Work LocalCommunicator::start(const Call& call) {
  const Tensor &to = call.destination, &from = call.source;
  if (to.data() == from.data() || from.elements() == 0) return {};
  if (backend_ != nullptr)
    backend_->copy(to, from.view(to.shape()));
  else
    std::memcpy(to.data(), from.data(), from.bytes());
  return {};
}

void LocalCommunicator::wait(Work work) {
  KINTSUGI_CHECK(work.ticket == 0, "group {}: wait for {}, which was never started", name(),
                 work.ticket);
}

}  // namespace kintsugi
