#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/reduce.h"
#include "core/error.h"

namespace kintsugi {

// Simulates one rank of a group in which every other rank has the same data: thousands of ranks at
// the cost of one. send() and receive() fail.
class EchoCommunicator : public Communicator {
 public:
  EchoCommunicator(std::string name, int rank, int size)
      : Communicator(std::move(name), rank, size) {}
  Work start(const Call& call) override {
    switch (call.kind) {
      case Collective::AllReduce:
        reduce(call, 0);
        break;
      case Collective::ReduceScatter:
        reduce(call, static_cast<std::size_t>(rank()) * call.destination.bytes());
        break;
      case Collective::AllGather:
        gather(call);
        break;
      case Collective::AllToAll:
        exchange(call);
        break;
      case Collective::Broadcast:
      case Collective::Barrier:
        break;
      case Collective::Send:
      case Collective::Receive:
        failure("rank {} of group {} is only simulated", call.peer, name());
    }
    return {};
  }
  void wait(Work) override {}
  void barrier() override {}

 private:
  static std::byte* bytes_in(const Tensor& x) { return static_cast<std::byte*>(x.data()); }

  void reduce(const Call& call, std::size_t offset) const {
    const std::vector<const void*> parts(static_cast<std::size_t>(size()),
                                         bytes_in(call.source) + offset);
    const Tensor& to = call.destination;
    reduce_parts(to.data(), parts, to.elements(), to.dtype(), call.op);
  }
  void gather(const Call& call) const {
    const Tensor& shard = call.source;
    const std::vector<std::byte> copy(bytes_in(shard), bytes_in(shard) + shard.bytes());
    for (int r = 0; r < size(); ++r)
      std::memcpy(bytes_in(call.destination) + static_cast<std::size_t>(r) * copy.size(),
                  copy.data(), copy.size());
  }
  // Every rank sends this one what it sends itself.
  void exchange(const Call& call) const {
    const ExchangeCounts& counts = *call.counts;
    const auto own = static_cast<std::size_t>(rank());
    const auto bytes = [&](std::int64_t elements) {
      return static_cast<std::size_t>(elements) * size_of(call.source.dtype());
    };
    std::size_t before = 0, at = 0;
    for (std::size_t r = 0; r < own; ++r) before += bytes(counts.sent[r]);
    for (const std::int64_t elements : counts.received) {
      KINTSUGI_CHECK(elements == counts.sent[own], "{} elements of {}", elements, counts.sent[own]);
      std::memcpy(bytes_in(call.destination) + at, bytes_in(call.source) + before, bytes(elements));
      at += bytes(elements);
    }
  }
};

}  // namespace kintsugi
