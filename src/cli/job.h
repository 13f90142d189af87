#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cli/backends.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/grid.h"
#include "comm/lifeline.h"

namespace kintsugi {

// All ranks of one launch, or this process alone. Only rank 0 writes to the terminal; warnings of
// the other ranks are sent to it.
class Job {
 public:
  explicit Job(Trace* trace = nullptr);  // `trace` must outlive the job
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  World& world() { return *world_; }
  // Runs `work` on this rank. An error found by all ranks is reported once; an error of one rank is
  // reported with its rank number and ends the other ranks.
  void run(const std::function<void()>& work);
  // Sets a callback that runs on rank 0, in another thread, when a rank fails.
  void on_failure(std::function<void(const std::string&)> listener);
  // Collective: if `work` throws on one rank, all ranks throw.
  void together(const std::function<void()>& work);
  // Collective: throws a UserError on all ranks if their facts differ (comm/agreement.h).
  void check_agreement(const Facts& facts);
  // Collective: returns the text of rank 0.
  std::string broadcast_text(const std::string& text);
  // Ends the job because this rank has failed; callable from any thread.
  void abort(const std::string& text, int exit_code = 1);

 private:
  // Reports an error that all ranks know of.
  void report_shared_error(const std::string& text);

  std::mutex mutex_;
  std::function<void(const std::string&)> on_failure_;
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Lifeline> lifeline_;  // nullptr with one rank
};

// The threads of this rank: `configured`, or its share of the node's cores if that is 0. 0: all
// cores.
std::int64_t threads_for(std::int64_t configured, const World& world);

// The communicators of a grid's groups, between hosts and between devices. With comm.check every
// collective is checked.
class JobGroups {
 public:
  JobGroups(Job& job, Backend& backend, const Grid& grid, const CommConfig& comm,
            Trace* trace = nullptr);
  ~JobGroups();
  const Groups& get() const { return groups_; }
  const std::string& description() const { return devices_.description; }
  World& devices() { return devices_.gpus ? *devices_.gpus : hosts_; }  // without comm.check

 private:
  World& hosts_;
  DeviceWorld devices_;
  std::unique_ptr<World> checked_hosts_, checked_devices_;
  Groups groups_;
};

}  // namespace kintsugi
