#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/trace.h"

namespace kintsugi {

// A call that is under way. advance() is called again and again in the progress thread, starts it
// the first time, never blocks, and returns true when it is done.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool advance() = 0;
  // What a trace shall show of it; the times are the thread's to fill in.
  void describe(TraceSpan span) { span_ = std::make_unique<TraceSpan>(std::move(span)); }

 protected:
  std::int64_t bytes_sent_ = 0;

 private:
  friend class ProgressThread;
  const void* lane_ = nullptr;
  CommunicationTimes* times_ = nullptr;
  bool done_ = false;
  std::exception_ptr exception_;
  std::unique_ptr<TraceSpan> span_;
};

// For libraries such as MPI that make progress only inside their calls: one thread of the process
// makes all of these, while the others compute. It sleeps when nothing is under way.
class ProgressThread final : private Trace::Source {
 public:
  explicit ProgressThread(Trace* trace = nullptr);
  ~ProgressThread() override;  // abandons what is under way

  // Runs a task in the thread and waits for it; rethrows.
  void run(const std::function<void()>& task);

  // Starts an operation. Those of one lane run one after the other, those without a lane (nullptr)
  // at once; all of them start in the order they were submitted. Counted in `times`, which outlives
  // it.
  void submit(std::shared_ptr<Operation> operation, const void* lane, CommunicationTimes& times);
  void wait(Operation& operation);
  CommunicationTimes read(const CommunicationTimes& times);

  bool idle();  // nothing is under way
  bool traces() const { return trace_ != nullptr && trace_->on(); }

  // From now on nothing moves and every wait is a Failure: memory of operations under way is going
  // away.
  void freeze();

 private:
  using Clock = std::chrono::steady_clock;
  class Task;

  void trace_begins() override {}
  void trace_ends() override;  // waits until nothing is under way

  void work();
  bool advance_all();
  void finish(Operation& operation);
  void pause(std::unique_lock<std::mutex>& lock, int idle_passes);

  Trace* trace_;
  std::mutex mutex_;
  std::condition_variable submitted_, done_;
  std::vector<std::shared_ptr<Operation>> queue_;
  bool stop_ = false;
  bool frozen_ = false;
  struct Busy {
    const CommunicationTimes* times;
    Clock::time_point since;
  };
  std::vector<Busy> busy_;
  // The thread's own:
  std::list<std::shared_ptr<Operation>> active_;
  std::vector<std::shared_ptr<Operation>> finished_;
  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace kintsugi
