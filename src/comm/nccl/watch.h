#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/gpu/runtime.h"
#include "comm/communicator.h"
#include "comm/nccl/library.h"
#include "comm/rank_failure.h"
#include "comm/roll_call.h"
#include "core/collective.h"
#include "core/trace.h"

namespace kintsugi::nccl {

// ---- calls in flight

// An NCCL communicator and the stream on which its calls run, one after the other.
struct Lane {
  Lane(std::string id, std::vector<int> members, std::shared_ptr<CommunicationTimes> times);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::string id;                             // "dp#4", "pp#5 2>3": the same on all its ranks
  std::string label;                                // in a trace: "dp", "pp > 3"
  const std::vector<int> members;                   // world ranks
  const std::shared_ptr<CommunicationTimes> times;  // of the group; guarded by Watch::mutex_
  Comm comm = nullptr;
  // The highest priority, since other ranks wait for it.
  const gpu::Stream stream = gpu::create_stream(gpu::Priority::Highest);
  std::atomic<std::int64_t> started = 0, finished = 0;
};

// Reuses timing events.
class EventPool {
 public:
  ~EventPool();
  gpu::Event take();
  void give(gpu::Event event);

 private:
  std::mutex mutex_;
  std::vector<gpu::Event> free_;
};

class Event {
 public:
  explicit Event(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  ~Event() { pool_->give(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  gpu::Event get() const { return event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  gpu::Event event_;
};

struct Call {
  Call(std::shared_ptr<Lane> lane, Collective kind, std::int64_t bytes,
       const std::shared_ptr<EventPool>& pool)
      : lane(std::move(lane)), kind(kind), bytes(bytes), begin(pool), end(pool), reached(pool) {}

  const std::shared_ptr<Lane> lane;
  const Collective kind;
  const std::int64_t bytes;  // of the whole tensor
  std::int64_t number = 0;   // in the lane, counted from 1
  Event begin, end;
  Event reached;  // the backend's stream has reached the wait
  bool waited = false;
  bool done = false;
  bool traced = false;
  std::optional<std::chrono::steady_clock::time_point> began;
};

// Monitors all calls in its own thread: which are done, which time out, which communicators report
// errors. On an error it aborts all communicators, so that no kernel keeps spinning on the GPU,
// asks the other ranks of the group for their progress, and reports the failure. Other threads that
// find the error wait for this report.
class Watch final : private Trace::Source {
 public:
  struct Options {
    int device;
    double timeout_s;
    std::function<void(const RankFailure&)> on_failure;  // required
    Trace* trace = nullptr;
    std::function<double(gpu::Event)> event_time = {};  // with a trace
  };
  // All ranks construct it.
  Watch(std::shared_ptr<const Library> nccl, World& hosts, Options options);
  ~Watch() override;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const std::shared_ptr<EventPool>& events() const { return events_; }

  // Runs f with exclusive access to NCCL. Throws Failure after an error. It is also an error if f
  // does not return within the timeout.
  template <class F>
  void exclusively(const char* what, const Lane* lane, F&& f) {
    std::unique_lock lock(mutex_);
    throw_after_error(lock);
    const InsideScope scope(*this, what, lane);
    f();
  }
  bool has_failed() const {
    const std::lock_guard lock(mutex_);
    return failure_.has_value();
  }

  void add(std::shared_ptr<Lane> lane);
  // Waits for all its calls first.
  void remove(const std::shared_ptr<Lane>& lane);
  std::vector<std::shared_ptr<Lane>> lanes() const;

  // Call it inside exclusively(), after a call was queued.
  void add(std::shared_ptr<Call> call, double bytes);
  CommunicationTimes read(const CommunicationTimes& times);  // throws Failure after an error
  // Aborts all communicators; later calls throw Failure.
  void abandon();

 private:
  using Clock = std::chrono::steady_clock;
  struct InsideScope {
    InsideScope(Watch& watch, const char* what, const Lane* lane);
    ~InsideScope();
    Watch& watch;
  };
  struct Inside {
    const char* what = nullptr;
    const Lane* lane = nullptr;
    Clock::time_point since;
  };

  void trace_begins() override {}
  void trace_ends() override;  // waits for all calls

  void work();
  bool poll();       // false: an error was found and reported
  void find_done();  // with mutex_ locked
  void finish(Call& call);
  // What failed, and the call that some of `members` may not have made.
  struct Problem {
    RankFailure failure;  // as far as it is known without asking others
    std::string id = {};  // of the lane
    std::int64_t number = 0;
    std::vector<int> members = {};  // empty: do not ask other ranks
  };
  std::optional<Problem> late_call() const;
  std::optional<Problem> broken_lane() const;
  std::optional<Problem> host_stuck() const;
  std::string call_counts() const;
  RankFailure missing_ranks(const Problem& problem) const;
  void report(const Problem& problem, std::unique_lock<std::mutex> lock);
  // Throws Failure if there was an error, after it has been reported.
  void throw_after_error(std::unique_lock<std::mutex>& lock);
  void abort_all();

  const std::shared_ptr<const Library> nccl_;
  const int rank_;
  const Options options_;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();

  mutable std::mutex mutex_;                // guards NCCL calls and the members up to lanes_mutex_
  std::list<std::shared_ptr<Call>> calls_;  // not done yet
  std::optional<RankFailure> failure_;
  bool reported_ = false;  // failure_ is complete
  std::condition_variable report_done_;
  Clock::time_point errors_read_;

  mutable std::mutex lanes_mutex_;  // guards lanes_ and inside_; held briefly
  std::vector<std::shared_ptr<Lane>> lanes_;
  Inside inside_;

  std::mutex stop_mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;

  RollCall roll_call_;
  std::thread thread_;  // last, so that all other members are initialized first
};

}  // namespace kintsugi::nccl
