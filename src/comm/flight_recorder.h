#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/grid.h"
#include "comm/rank_failure.h"
#include "core/collective.h"

namespace kintsugi {

// Where a rank is in the calls of its groups.
struct RankCalls {
  struct Call {
    std::int64_t number = 0;  // in its group, from 1
    Collective kind = Collective::Barrier;
    std::int64_t bytes = 0;
    std::int64_t peer = -1;  // of a send or receive: its rank in the group
  };
  struct Group {
    std::string name;
    // Identify the group: the n-th split of the job, and the color in it.
    std::int64_t split = 0, color = 0;
    std::int64_t rank = 0, size = 0;  // in the group
    std::int64_t calls = 0;           // made so far
    std::int64_t waiting_for = 0;     // the call that the rank waits for; 0: none
    double waiting_s = 0;
    std::vector<Call> recent = {};  // oldest first
  };
  std::int64_t rank = 0, step = 0;
  std::string node;
  std::vector<Group> groups;
};

// As one line of JSON. from_json() returns nothing for anything else.
std::string to_json(const RankCalls& position);
std::optional<RankCalls> position_from_json(const std::string& text);

// Names the first call that not all ranks of a group have made, the ranks that are missing and
// those that wait; or two ranks whose calls of the same number differ. No text if there is none.
// The ranks that have not made the call and wait for no other one are at fault (Stuck). There may
// be none: of two ranks whose calls differ, nobody knows which is wrong.
RankFailure diagnose(const std::vector<RankCalls>& positions);

class FlightRecorder;

// The file of a rank's recorder in the memory of this node; `key` names the job. Removes files that
// jobs left behind more than an hour ago. Empty if there is no such memory.
std::filesystem::path recorder_file(const std::string& key, int rank);
// The position of this rank as JSON and, if it was recorded on this node, that of the rank `lost`
// of the same job (-1: none).
std::vector<std::string> positions_here(const FlightRecorder& own, const std::string& key,
                                        int lost);

// Records the communication calls of one rank in memory that is shared with a file. The file
// survives the process however it ends, and other processes of the node can read it. Recording a
// call takes some 50 ns.
class FlightRecorder {
 public:
  // Creates the file. If that fails, or without a path, only this process can read the record.
  FlightRecorder(int rank, std::string node, const std::filesystem::path& file = {});
  ~FlightRecorder();  // removes the file
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  static constexpr int kMaxGroups = 64;
  // Returns the group's index, or -1 if there are too many. Only one thread uses a group. Waits of
  // a group of the `background`, such as those of a save, are not waits of a step.
  int add_group(const std::string& name, std::int64_t split, std::int64_t color, int rank, int size,
                bool background = false);
  void remove_group(int group);
  // Returns the number of the call.
  std::int64_t call(int group, Collective kind, std::int64_t bytes, int peer = -1);
  void begin_wait(int group, std::int64_t number);
  void end_wait(int group);

  // A wait counts against comm.timeout_s only inside a step.
  void begin_step(std::int64_t step);
  void end_step();
  std::int64_t step() const;
  // How long this rank has been waiting inside the step; 0 if it is not.
  double waiting_s() const;

  RankCalls position() const;
  static std::optional<RankCalls> read(const std::filesystem::path& file);

 private:
  struct Memory;
  static RankCalls position_of(const Memory& memory);

  std::filesystem::path file_;
  std::string node_;
  Memory* memory_ = nullptr;
};

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
