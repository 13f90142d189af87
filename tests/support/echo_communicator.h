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
      : name_(std::move(name)), rank_(rank), size_(size) {}
  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Work all_reduce(Tensor x, ReduceOp op) override {
    const std::vector<const void*> parts(static_cast<std::size_t>(size_), x.data());
    reduce_parts(x.data(), parts, x.elements(), x.dtype(), op);
    return {};
  }
  Work reduce_scatter(Tensor shard, Tensor full) override {
    const auto* own = static_cast<const std::byte*>(full.data()) +
                      static_cast<std::size_t>(rank_) * shard.bytes();
    const std::vector<const void*> parts(static_cast<std::size_t>(size_), own);
    reduce_parts(shard.data(), parts, shard.elements(), shard.dtype(), ReduceOp::Sum);
    return {};
  }
  Work all_gather(Tensor full, Tensor shard) override {
    const std::vector<std::byte> copy(static_cast<const std::byte*>(shard.data()),
                                      static_cast<const std::byte*>(shard.data()) + shard.bytes());
    for (int r = 0; r < size_; ++r)
      std::memcpy(static_cast<std::byte*>(full.data()) + static_cast<std::size_t>(r) * copy.size(),
                  copy.data(), copy.size());
    return {};
  }
  Work broadcast(Tensor, int) override { return {}; }
  // Every rank sends this one what it sends itself.
  Work all_to_all(Tensor received, Tensor sent, const ExchangeCounts& counts) override {
    const auto own = static_cast<std::size_t>(rank_);
    const auto bytes = [&](std::int64_t elements) {
      return static_cast<std::size_t>(elements) * size_of(sent.dtype());
    };
    std::size_t before = 0, at = 0;
    for (std::size_t r = 0; r < own; ++r) before += bytes(counts.sent[r]);
    for (const std::int64_t elements : counts.received) {
      KINTSUGI_CHECK(elements == counts.sent[own], "{} elements of {}", elements, counts.sent[own]);
      std::memcpy(static_cast<std::byte*>(received.data()) + at,
                  static_cast<const std::byte*>(sent.data()) + before, bytes(elements));
      at += bytes(elements);
    }
    return {};
  }
  Work send(Tensor, int to) override {
    failure("rank {} of group {} is only simulated", to, name_);
  }
  Work receive(Tensor, int from) override {
    failure("rank {} of group {} is only simulated", from, name_);
  }
  void wait(Work) override {}
  void barrier() override {}

 private:
  std::string name_;
  int rank_, size_;
};

}  // namespace kintsugi
