#include "serve/engine_thread.h"

#include <exception>

#include "core/error.h"

namespace kintsugi {

EngineThread::EngineThread(InferenceEngine& engine)
    : engine_(engine), counters_(engine.counters()), thread_([this] { run(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

InferenceEngine::Id EngineThread::submit(InferenceRequest request, InferenceListener listener) {
  engine_.check(request);
  InferenceEngine::Id id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
    submitted_.push_back({id, std::move(request), std::move(listener)});
    idle_ = false;
  }
  changed_.notify_all();
  return id;
}

void EngineThread::cancel(InferenceEngine::Id id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  changed_.notify_all();
}

InferenceCounters EngineThread::counters() const {
  const std::lock_guard lock(mutex_);
  InferenceCounters result = counters_;
  result.waiting += std::ssize(submitted_);
  return result;
}

void EngineThread::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return idle_; });
}

void EngineThread::submit_to_engine(Submission submission) {
  auto on_end = std::move(submission.listener.on_end);
  submission.listener.on_end = [this, id = submission.id, on_end = std::move(on_end)](
                                   InferenceEnd end, const std::string& error) {
    in_engine_.erase(id);
    if (on_end) on_end(end, error);
  };
  in_engine_[submission.id] =
      engine_.submit(std::move(submission.request), std::move(submission.listener));
}

void EngineThread::cancel_in_engine(InferenceEngine::Id id) {
  if (const auto found = in_engine_.find(id); found != in_engine_.end())
    engine_.cancel(found->second);
}

std::optional<std::string> EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EngineThread::run() {
  try {
    run_engine();
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    failure_ = error.what();
  }
  if (failure()) refuse_all();
}

// Ends all requests until the destructor is called.
void EngineThread::refuse_all() {
  for (bool ending = false; !ending;) {
    std::vector<Submission> submitted;
    {
      std::unique_lock lock(mutex_);
      idle_ = submitted_.empty();
      counters_ = engine_.counters();
      if (idle_) changed_.notify_all();
      changed_.wait(lock, [&] { return ending_ || !submitted_.empty(); });
      submitted.swap(submitted_);
      ending = ending_;
    }
    for (const Submission& submission : submitted)
      if (submission.listener.on_end) submission.listener.on_end(InferenceEnd::Failed, *failure_);
  }
}

void EngineThread::run_engine() {
  bool busy = false;
  for (;;) {
    std::vector<Submission> submitted;
    std::vector<InferenceEngine::Id> cancelled;
    {
      std::unique_lock lock(mutex_);
      counters_ = engine_.counters();
      idle_ = !busy && submitted_.empty();
      if (idle_) changed_.notify_all();
      changed_.wait(lock, [&] { return busy || ending_ || !submitted_.empty(); });
      if (ending_ && !busy && submitted_.empty()) return;
      submitted.swap(submitted_);
      cancelled.swap(cancelled_);
      if (ending_)
        for (const auto& [id, engine_id] : in_engine_) cancelled.push_back(id);
      if (ending_)
        for (const Submission& submission : submitted) cancelled.push_back(submission.id);
    }
    for (Submission& submission : submitted) submit_to_engine(std::move(submission));
    for (const InferenceEngine::Id id : cancelled) cancel_in_engine(id);
    busy = engine_.step();
  }
}

}  // namespace kintsugi
