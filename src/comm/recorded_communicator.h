#pragma once

#include <array>
#include <memory>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "comm/grid.h"

namespace kintsugi {

// Forwards all calls and records them. The recorder must outlive it.
class RecordedCommunicator : public ForwardingCommunicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> inner, FlightRecorder& recorder,
                       std::int64_t split, std::int64_t color, bool background = false)
      : ForwardingCommunicator(std::move(inner)),
        recorder_(recorder),
        group_(recorder.add_group(inner_->name(), split, color, inner_->rank(), inner_->size(),
                                  background)) {}
  ~RecordedCommunicator() override { recorder_.remove_group(group_); }
  Work start(const Call& call) override;
  void wait(Work work) override;
  void barrier() override;

 private:
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
      : World(inner.place()), inner_(inner), recorder_(recorder), splits_(first_split) {}
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
