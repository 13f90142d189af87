#pragma once

#include <array>
#include <memory>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "comm/grid.h"

namespace kintsugi {

// Forwards all calls and records them. The recorder must outlive it.
class RecordedCommunicator : public Communicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> inner, FlightRecorder& recorder,
                       std::int64_t split, std::int64_t color, bool background = false)
      : inner_(std::move(inner)),
        recorder_(recorder),
        group_(recorder.add_group(inner_->name(), split, color, inner_->rank(), inner_->size(),
                                  background)) {}
  ~RecordedCommunicator() override { recorder_.remove_group(group_); }
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
  void wait(Work work) override;
  void barrier() override;
  std::shared_ptr<void> register_memory(Tensor x) override { return inner_->register_memory(x); }
  CommunicationTimes times() const override { return inner_->times(); }

 private:
  template <class Call>
  Work record(Collective kind, const Tensor& x, const Call& call, int peer = -1);

  std::unique_ptr<Communicator> inner_;
  FlightRecorder& recorder_;
  int group_;
  // The numbers of the last calls, by ticket: older ones have been waited for.
  struct Pending {
    std::int64_t ticket = 0, number = 0;
  };
  std::array<Pending, 64> pending_ = {};
};

// Makes groups of the type RecordedCommunicator. A group of one rank is not recorded.
class RecordedWorld : public World {
 public:
  RecordedWorld(World& inner, FlightRecorder& recorder, std::int64_t first_split)
      : inner_(inner), recorder_(recorder), splits_(first_split) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  int local_rank() const override { return inner_.local_rank(); }
  int local_size() const override { return inner_.local_size(); }
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    auto inner = inner_.split(name, color, key);
    const std::int64_t number = splits_++;
    if (inner->size() == 1) return inner;
    // Saves use these in a thread of their own.
    const bool background =
        name == to_string(GroupKind::Checkpoint) || name == to_string(GroupKind::HostTp);
    return std::make_unique<RecordedCommunicator>(std::move(inner), recorder_, number, color,
                                                  background);
  }

 private:
  World& inner_;
  FlightRecorder& recorder_;
  std::int64_t splits_;
};

}  // namespace kintsugi
