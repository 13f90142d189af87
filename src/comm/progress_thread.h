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

// A call in flight. The progress thread calls advance() repeatedly: the first call starts it, no
// call blocks, and it returns true when the operation is done.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual bool advance() = 0;
  // Sets the span for the trace; the progress thread fills in the times.
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

// For libraries such as MPI that make progress only inside their calls: one thread makes all calls
// while the others compute. It sleeps when nothing is in flight.
class ProgressThread final : private Trace::Source {
 public:
  explicit ProgressThread(Trace* trace = nullptr);
  ~ProgressThread() override;  // abandons operations in flight

  // Runs a task in the thread and waits for it; rethrows.
  void run(const std::function<void()>& task);

  // Starts an operation. Operations of one lane run one after the other, those without a lane
  // (nullptr) concurrently; all start in the order of submission. They are counted in `times`,
  // which must outlive them.
  void submit(std::shared_ptr<Operation> operation, const void* lane, CommunicationTimes& times);
  void wait(Operation& operation);
  CommunicationTimes read(const CommunicationTimes& times);

  bool idle();  // nothing is in flight
  bool traces() const { return trace_ != nullptr && trace_->on(); }

  // Stops all progress; every wait throws Failure from now on. Call it before the memory of
  // operations in flight is freed.
  void freeze();

 private:
  using Clock = std::chrono::steady_clock;
  class Task;

  void trace_begins() override {}
  void trace_ends() override;  // waits until nothing is in flight

  void work();
  bool advance_all();
  void finish(Operation& operation);
  void pause(std::unique_lock<std::mutex>& lock, int idle_rounds);

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
  // Used by the thread only:
  std::list<std::shared_ptr<Operation>> active_;
  std::vector<std::shared_ptr<Operation>> finished_;
  std::thread thread_;  // last, so that all other members are initialized first
};

}  // namespace kintsugi
