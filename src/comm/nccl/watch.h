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

#include "comm/collective.h"
#include "comm/communicator.h"
#include "comm/nccl/calls.h"
#include "comm/roll_call.h"
#include "core/trace.h"

namespace kintsugi::nccl {

// An NCCL communicator and the stream that its calls run on, one after the other.
struct Lane {
  Lane(std::string id, std::vector<int> members, std::shared_ptr<CommunicationTimes> times);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::string id;                             // "dp#4", "pp#5 2>3": the same on all its ranks
  std::string label;                                // in a trace: "dp", "pp > 3"
  const std::vector<int> members;                   // the world's ranks
  const std::shared_ptr<CommunicationTimes> times;  // of the group; under the watch's lock
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::atomic<std::int64_t> started = 0, finished = 0;
};

// Timing events, used again and again.
class EventPool {
 public:
  ~EventPool();
  cudaEvent_t take();
  void give(cudaEvent_t event);

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class Event {
 public:
  explicit Event(std::shared_ptr<EventPool> pool) : pool_(std::move(pool)), event_(pool_->take()) {}
  ~Event() { pool_->give(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  std::shared_ptr<EventPool> pool_;
  cudaEvent_t event_;
};

struct Call {
  Call(std::shared_ptr<Lane> lane, Collective kind, std::int64_t bytes,
       const std::shared_ptr<EventPool>& pool)
      : lane(std::move(lane)), kind(kind), bytes(bytes), begin(pool), end(pool), reached(pool) {}

  const std::shared_ptr<Lane> lane;
  const Collective kind;
  const std::int64_t bytes;  // of the whole tensor
  std::int64_t number = 0;   // in the lane, from 1
  Event begin, end;
  Event reached;  // the backend's stream came to the wait
  bool waited = false;
  bool done = false;
  bool traced = false;
  std::optional<std::chrono::steady_clock::time_point> began;
};

// Watches over all calls in a thread of its own: which are done, which take too long, which
// communicators report errors. On trouble it aborts all communicators, so that nothing is left
// spinning on the GPU, asks the ranks concerned where they stand, and says what happened. Until
// then whoever meets the trouble waits: what was aborted has no result.
class Watch final : private Trace::Source {
 public:
  struct Options {
    int device;
    double timeout_s;
    std::function<void(const std::string&)> on_failure;  // not none
    Trace* trace = nullptr;
    std::function<double(void* event)> event_time = {};  // with a trace
  };
  // Every rank calls it.
  Watch(World& hosts, Options options);
  ~Watch() override;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const std::shared_ptr<EventPool>& events() const { return events_; }

  // Runs f with NCCL to itself. Failure if there was trouble before. What keeps the host too long
  // in there is trouble as well.
  template <class F>
  void inside(const char* what, const Lane* lane, F&& f) {
    std::unique_lock lock(mutex_);
    fail_in_trouble(lock);
    const Stay stay(*this, what, lane);
    f();
  }
  bool in_trouble() const {
    const std::lock_guard lock(mutex_);
    return !trouble_.empty();
  }

  void add(std::shared_ptr<Lane> lane);
  // When all its calls are done.
  void remove(const std::shared_ptr<Lane>& lane);
  std::vector<std::shared_ptr<Lane>> lanes() const;

  // Inside: a call was queued.
  void add(std::shared_ptr<Call> call, double bytes);
  CommunicationTimes read(const CommunicationTimes& times);  // Failure after trouble
  // Aborts everything; later calls are Failures.
  void abandon();

 private:
  using Clock = std::chrono::steady_clock;
  struct Stay {
    Stay(Watch& watch, const char* what, const Lane* lane);
    ~Stay();
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
  bool look();       // false: trouble was found and dealt with
  void find_done();  // under the lock
  void finish(Call& call);
  // What happened, and the call that some of these ranks may not have made.
  struct Trouble {
    std::string text;
    std::string id = {};  // of the lane
    std::int64_t number = 0;
    std::vector<int> members = {};  // none: nobody to ask
  };
  std::optional<Trouble> late_call() const;
  std::optional<Trouble> broken_lane() const;
  std::optional<Trouble> host_stuck() const;
  std::string standing() const;
  std::string blame(const Trouble& trouble) const;
  void report(const Trouble& trouble, std::unique_lock<std::mutex> lock);
  // Failure if there was any, once all about it is known.
  void fail_in_trouble(std::unique_lock<std::mutex>& lock);
  void abort_all();

  const int rank_;
  const Options options_;
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();

  mutable std::mutex mutex_;  // NCCL's and that of everything down to the next comment
  std::list<std::shared_ptr<Call>> calls_;  // not done yet
  std::string trouble_;
  bool all_known_ = false;  // of the trouble
  std::condition_variable known_;
  Clock::time_point errors_read_;

  mutable std::mutex lanes_mutex_;  // for a moment only
  std::vector<std::shared_ptr<Lane>> lanes_;
  Inside inside_;

  std::mutex stop_mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;

  RollCall roll_call_;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace kintsugi::nccl
