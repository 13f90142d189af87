#include "comm/progress_thread.h"

#include <sched.h>

#include <algorithm>

namespace kintsugi {

class ProgressThread::Task : public Operation {
 public:
  explicit Task(const std::function<void()>& task) : task_(task) {}
  bool advance() override {
    task_();
    return true;
  }

 private:
  const std::function<void()>& task_;
};

ProgressThread::ProgressThread(Trace* trace) : trace_(trace), thread_([this] { work(); }) {
  if (trace_ != nullptr) trace_->attach(*this);
}

ProgressThread::~ProgressThread() {
  if (trace_ != nullptr) trace_->detach(*this);
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  submitted_.notify_one();
  thread_.join();
}

void ProgressThread::run(const std::function<void()>& task) {
  CommunicationTimes uncounted;
  const auto operation = std::make_shared<Task>(task);
  submit(operation, nullptr, uncounted);
  wait(*operation);
}

void ProgressThread::submit(std::shared_ptr<Operation> operation, const void* lane,
                            CommunicationTimes& times) {
  {
    const std::lock_guard lock(mutex_);
    if (frozen_) failure("communication was abandoned after an error");
    operation->lane_ = lane;
    operation->times_ = &times;
    if (times.started++ == times.finished) busy_.push_back({&times, Clock::now()});
    queue_.push_back(std::move(operation));
  }
  submitted_.notify_one();
}

void ProgressThread::wait(Operation& operation) {
  std::unique_lock lock(mutex_);
  if (!operation.done_) {
    const auto begin = Clock::now();
    done_.wait(lock, [&] { return operation.done_ || frozen_; });
    operation.times_->waited_s += std::chrono::duration<double>(Clock::now() - begin).count();
    if (!operation.done_) failure("communication was abandoned after an error");
  }
  if (operation.exception_) std::rethrow_exception(operation.exception_);
}

CommunicationTimes ProgressThread::read(const CommunicationTimes& times) {
  const std::lock_guard lock(mutex_);
  return times;
}

bool ProgressThread::idle() {
  const std::lock_guard lock(mutex_);
  return busy_.empty();
}

void ProgressThread::trace_ends() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_.empty() || frozen_; });
}

void ProgressThread::freeze() {
  std::unique_lock lock(mutex_);
  frozen_ = true;
  done_.notify_all();
  submitted_.notify_one();
  // Wait until the thread has left work(), since memory is freed after this.
  done_.wait(lock, [this] { return stop_; });
}

void ProgressThread::work() {
  int idle_rounds = 0;
  std::unique_lock lock(mutex_);
  while (!stop_ && !frozen_) {
    if (queue_.empty() && active_.empty())
      submitted_.wait(lock, [this] { return stop_ || frozen_ || !queue_.empty(); });
    if (!queue_.empty()) idle_rounds = 0;
    active_.insert(active_.end(), queue_.begin(), queue_.end());
    queue_.clear();
    lock.unlock();
    idle_rounds = advance_all() ? 0 : idle_rounds + 1;
    lock.lock();
    for (const auto& operation : finished_) finish(*operation);
    if (!finished_.empty()) done_.notify_all();
    finished_.clear();
    if (idle_rounds > 0 && queue_.empty()) pause(lock, idle_rounds);
  }
  stop_ = true;
  done_.notify_all();
}

// Returns whether any operation finished. Only the oldest operation of each lane advances.
bool ProgressThread::advance_all() {
  std::vector<const void*> lanes;
  for (auto at = active_.begin(); at != active_.end();) {
    Operation& operation = **at;
    bool done = false;
    const bool behind =
        operation.lane_ != nullptr && std::ranges::find(lanes, operation.lane_) != lanes.end();
    if (!behind) {
      if (operation.span_ && operation.span_->begin_s == 0) operation.span_->begin_s = Trace::now();
      try {
        done = operation.advance();
      } catch (...) {
        operation.exception_ = std::current_exception();
        done = true;
      }
    }
    if (done) {
      if (operation.span_)
        operation.span_->end_s = Trace::now();  // before the next operation of the lane starts
      finished_.push_back(*at);
      at = active_.erase(at);
    } else {
      if (operation.lane_ != nullptr && !behind) lanes.push_back(operation.lane_);
      ++at;
    }
  }
  return !finished_.empty();
}

void ProgressThread::finish(Operation& operation) {
  operation.done_ = true;
  if (operation.span_) trace_->add(std::move(*operation.span_));
  CommunicationTimes& times = *operation.times_;
  times.bytes += operation.bytes_sent_;
  if (++times.finished < times.started) return;
  const auto busy =
      std::ranges::find_if(busy_, [&](const Busy& entry) { return entry.times == &times; });
  times.busy_s += std::chrono::duration<double>(Clock::now() - busy->since).count();
  busy_.erase(busy);
}

// Other ranks may need this core: yield at first, then sleep if nothing happens.
void ProgressThread::pause(std::unique_lock<std::mutex>& lock, int idle_rounds) {
  constexpr int kYields = 50;
  if (idle_rounds <= kYields) {
    lock.unlock();
    sched_yield();
    lock.lock();
    return;
  }
  const auto sleep = std::chrono::microseconds(std::min(20 * (idle_rounds - kYields), 500));
  submitted_.wait_for(lock, sleep, [this] { return stop_ || frozen_ || !queue_.empty(); });
}

}  // namespace kintsugi
