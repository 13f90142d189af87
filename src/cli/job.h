#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cli/worlds.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/grid.h"
#include "comm/lifeline.h"

namespace kintsugi {

// The ranks that were started together with this process, or this process alone. Rank 0 has the
// terminal; what the others have to say goes through it.
class Job {
 public:
  explicit Job(Trace* trace = nullptr);  // which outlives it
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  World& world() { return *world_; }
  // Errors that all ranks find are reported once, errors of one rank with its number, and none is
  // left waiting for the others.
  void run(const std::function<void()>& work);
  // On rank 0, what else to do when a rank fails; called from another thread.
  void on_failure(std::function<void(const std::string&)> listener);
  // One part of it that ends on all ranks or fails on all of them.
  void together(const std::function<void()>& work);
  // Every rank calls it: one mistake of all where their facts differ (comm/agreement.h).
  void check_agreement(const Facts& facts);
  // What rank 0 says; every rank calls it.
  std::string of_first(const std::string& text);
  // Ends the job, from any thread: this rank cannot go on.
  void give_up(const std::string& text, int exit_code = 1);

 private:
  // After an error that all ranks know of.
  void leave(const std::string& text);

  std::mutex mutex_;
  std::function<void(const std::string&)> on_failure_;
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Lifeline> lifeline_;  // with several ranks
};

// The groups of a grid, between hosts and between the backend's devices, with every collective
// checked if asked for.
class JobGroups {
 public:
  JobGroups(Job& job, Backend& backend, const Grid& grid, const CommConfig& comm,
            Trace* trace = nullptr);
  ~JobGroups();
  const Groups& get() const { return groups_; }
  const std::string& description() const { return devices_.description; }

 private:
  DeviceWorld devices_;
  std::unique_ptr<World> checked_hosts_, checked_devices_;
  Groups groups_;
};

}  // namespace kintsugi
