#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cli/backends.h"
#include "comm/communicator.h"
#include "comm/exchange.h"
#include "comm/flight_recorder.h"
#include "comm/grid.h"
#include "comm/lifeline.h"
#include "comm/supervisor_link.h"

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
  Communicator& control() { return *control_; }  // of all ranks, on host memory
  // Runs `work` on this rank. An error found by all ranks is reported once; an error of one rank is
  // reported with its rank number and ends the other ranks.
  void run(const std::function<void()>& work);
  // Sets a callback that runs on rank 0, in another thread, when a rank fails. The other ranks are
  // told only after it: it must be brief. What it returns, unless it is empty, runs after that,
  // before the process ends, which waits for it at most five seconds.
  using FailureListener = std::function<std::function<void()>(
      const RankFailure&, const std::vector<std::string>& positions)>;
  void on_failure(FailureListener listener);
  // Sets a callback that runs on rank 0, in another thread, when the supervisor asks the run to
  // stop or is lost.
  void on_stop_request(std::function<void(const std::string& reason)> listener);
  // Sets a callback that runs, in another thread, before this process ends without destructors:
  // because a rank has failed (it waits at most two seconds), or by a second Ctrl-C.
  void on_exit(std::function<void()> listener);
  // The run has stopped before its last step: what run() reports to the supervisor.
  void set_stopped(StopCause cause) { stop_ = cause; }
  // When a rank is given up (LifelineLimits). All ranks call it with the same values.
  void set_limits(double silence_s, double call_s);
  FlightRecorder& recorder() { return *recorder_; }
  // Collective: if `work` throws on one rank, all ranks throw.
  void together(const std::function<void()>& work);
  // Collective: throws a UserError on all ranks if their facts differ (comm/exchange.h).
  void check_agreement(const Facts& facts);
  // Collective: returns the text of rank 0.
  std::string broadcast_text(const std::string& text);
  // Ends the job because of a failure that this rank has noticed; callable from any thread.
  void abort(const RankFailure& failure);

 private:
  friend class JobGroups;

  Lifeline::Callbacks lifeline_callbacks();
  // Ends the process after the callbacks of on_exit and on_failure, without destructors.
  [[noreturn]] void end_process(int exit_code);
  // Reports an error that all ranks know of.
  void report_shared_error(const RankFailure& failure);
  void tell_supervisor(const RankFailure& failure);

  std::mutex mutex_;
  FailureListener on_failure_;
  std::function<void()> after_failure_;  // what it returned
  std::function<void(const std::string&)> on_stop_request_;
  std::function<void()> on_exit_;
  std::mutex ending_;         // held by the thread that ends the process
  std::string stop_request_;  // that arrived before its listener
  StopCause stop_ = StopCause::None;
  std::atomic<double> silence_s_ = LifelineLimits{}.silence_s;
  std::int64_t splits_ = 0;  // of recorded groups so far; the same on all ranks
  std::unique_ptr<World> world_;
  std::unique_ptr<Communicator> control_;
  std::string flight_key_;  // names the recorders of this job
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<SupervisorLink> link_;  // on rank 0, if the run is supervised
  std::unique_ptr<Lifeline> lifeline_;    // nullptr with one rank
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
  std::unique_ptr<World> recorded_hosts_, recorded_devices_;
  Groups groups_;
};

}  // namespace kintsugi
