#pragma once

#include <array>
#include <map>

#include "comm/collective.h"
#include "comm/communicator.h"

namespace kintsugi {

// The calls of one rank in the groups with one name, and their bytes by ring_bytes().
struct Traffic {
  struct Entry {
    std::int64_t calls = 0;
    double bytes = 0;
  };
  std::array<Entry, kCollectives> entries;

  Entry& operator[](Collective kind) { return entries[static_cast<int>(kind)]; }
  const Entry& operator[](Collective kind) const { return entries[static_cast<int>(kind)]; }
  double bytes() const;
};

// Forwards all calls and counts them in `traffic`, which must outlive it.
class CountingCommunicator : public Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, Traffic& traffic)
      : inner_(std::move(inner)), traffic_(traffic) {}
  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Work all_reduce(Tensor x, ReduceOp op) override;
  Work reduce_scatter(Tensor shard, Tensor full) override;
  Work all_gather(Tensor full, Tensor shard) override;
  Work broadcast(Tensor x, int root) override;
  Work all_to_all(Tensor received, Tensor sent, const ExchangeCounts& counts) override;
  Work send(Tensor x, int to) override;
  Work receive(Tensor x, int from) override;
  void wait(Work work) override { inner_->wait(work); }
  void barrier() override;
  std::shared_ptr<void> register_memory(Tensor x) override { return inner_->register_memory(x); }
  CommunicationTimes times() const override { return inner_->times(); }

 private:
  void count(Collective kind, std::size_t bytes);

  std::unique_ptr<Communicator> inner_;
  Traffic& traffic_;
};

// Makes groups of the type CountingCommunicator and counts by group name.
class CountingWorld : public World {
 public:
  explicit CountingWorld(World& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override;

  const Traffic& traffic(const std::string& group) { return traffic_[group]; }
  void reset();

 private:
  World& inner_;
  std::map<std::string, Traffic> traffic_;
};

}  // namespace kintsugi
