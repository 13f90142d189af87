#include "comm/nccl/watch.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi::nccl {

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(10);
constexpr auto kErrorPollInterval = std::chrono::milliseconds(200);
constexpr auto kAbortTimeout = std::chrono::seconds(10);
constexpr int kAnswerTimeoutMs = 3000;                     // for all ranks that are asked
constexpr auto kReportTimeout = std::chrono::seconds(20);  // to abort and to ask the ranks
constexpr double kMinHostTimeout_s = 120;                  // loading and connecting NCCL is slow

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

double elapsed_s(gpu::Event begin, gpu::Event end) { return gpu::elapsed_ms(begin, end) / 1000; }

}  // namespace

Lane::Lane(std::string id, std::vector<int> members, std::shared_ptr<CommunicationTimes> times)
    : id(std::move(id)), members(std::move(members)), times(std::move(times)) {}

Lane::~Lane() { gpu::destroy(stream); }

EventPool::~EventPool() {
  for (const gpu::Event event : free_) gpu::destroy(event);
}

gpu::Event EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const gpu::Event event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  return gpu::create_event();
}

void EventPool::give(gpu::Event event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

Watch::InsideScope::InsideScope(Watch& watch, const char* what, const Lane* lane) : watch(watch) {
  const std::lock_guard lock(watch.lanes_mutex_);
  watch.inside_ = {what, lane, Clock::now()};
}

Watch::InsideScope::~InsideScope() {
  const std::lock_guard lock(watch.lanes_mutex_);
  watch.inside_ = {};
}

Watch::Watch(std::shared_ptr<const Library> nccl, World& hosts, Options options)
    : nccl_(std::move(nccl)),
      rank_(hosts.rank()),
      options_(std::move(options)),
      roll_call_(hosts, [this] { return call_counts(); }),
      thread_([this] { work(); }) {
  if (options_.trace != nullptr) options_.trace->attach(*this);
}

Watch::~Watch() {
  if (options_.trace != nullptr) options_.trace->detach(*this);
  {
    const std::lock_guard lock(stop_mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void Watch::add(std::shared_ptr<Lane> lane) {
  const std::lock_guard lock(lanes_mutex_);
  lanes_.push_back(std::move(lane));
}

void Watch::remove(const std::shared_ptr<Lane>& lane) {
  // Not with the lock: it must be possible to abort what this waits for.
  gpu::synchronize(lane->stream);
  exclusively("ncclCommDestroy", lane.get(), [&] {
    find_done();
    {
      const std::lock_guard lock(lanes_mutex_);
      std::erase(lanes_, lane);
    }
    nccl_->check(nccl_->comm_destroy(lane->comm), "ncclCommDestroy");
  });
}

std::vector<std::shared_ptr<Lane>> Watch::lanes() const {
  const std::lock_guard lock(lanes_mutex_);
  return lanes_;
}

void Watch::add(std::shared_ptr<Call> call, double bytes) {
  Lane& lane = *call->lane;
  call->number = ++lane.started;
  call->traced = options_.trace != nullptr && options_.trace->on();
  ++lane.times->started;
  lane.times->bytes += static_cast<std::int64_t>(bytes);
  calls_.push_back(std::move(call));
}

CommunicationTimes Watch::read(const CommunicationTimes& times) {
  std::unique_lock lock(mutex_);
  throw_after_error(lock);
  find_done();
  return times;
}

void Watch::find_done() {
  for (auto at = calls_.begin(); at != calls_.end();) {
    Call& call = **at;
    if (!call.began && gpu::is_done(call.begin.get())) call.began = Clock::now();
    if (!call.began || !gpu::is_done(call.end.get())) {
      ++at;
      continue;
    }
    finish(call);
    at = calls_.erase(at);
  }
}

void Watch::finish(Call& call) {
  CommunicationTimes& times = *call.lane->times;
  call.done = true;
  ++call.lane->finished;
  ++times.finished;
  times.busy_s += elapsed_s(call.begin.get(), call.end.get());
  // If the backend's stream has not reached the wait yet, it will not have to wait.
  if (call.waited && gpu::is_done(call.reached.get()))
    times.waited_s += std::max(0.0, elapsed_s(call.reached.get(), call.end.get()));
  if (!call.traced) return;
  const Lane& lane = *call.lane;
  options_.trace->add(
      {.kind = SpanKind::Communication,
       .lane = lane.label,
       .name = to_string(call.kind),
       .begin_s = options_.event_time(call.begin.get()),
       .end_s = options_.event_time(call.end.get()),
       .bytes = call.bytes,
       .call = fmt::format("{} of {} {}", lane.id, lane.members.front(), call.number)});
}

void Watch::trace_ends() {
  // Not with the lock: it must be possible to abort what this waits for.
  for (const auto& lane : lanes()) gpu::synchronize(lane->stream);
  const std::lock_guard lock(mutex_);
  if (!failure_) find_done();
}

void Watch::work() {
  gpu::select_device(options_.device);
  for (;;) {
    {
      std::unique_lock lock(stop_mutex_);
      if (stopped_.wait_for(lock, kPollInterval, [this] { return stop_; })) return;
    }
    try {
      if (!poll()) return;
    } catch (const Failure& error) {  // of the GPU or NCCL
      report({.failure = failure_of(error, {.rank = rank_})},
             std::unique_lock(mutex_, std::try_to_lock));
      return;
    }
  }
}

bool Watch::poll() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {
    const std::optional<Problem> stuck = host_stuck();
    if (stuck) report(*stuck, std::move(lock));
    return !stuck;
  }
  if (failure_) return false;
  find_done();
  std::optional<Problem> found = late_call();
  if (!found && Clock::now() - errors_read_ > kErrorPollInterval) {
    errors_read_ = Clock::now();
    found = broken_lane();
  }
  if (!found) return true;
  report(*found, std::move(lock));
  return false;
}

std::optional<Watch::Problem> Watch::late_call() const {
  for (const auto& call : calls_) {
    if (!call->began || seconds(Clock::now() - *call->began) < options_.timeout_s) continue;
    const Lane& lane = *call->lane;
    return Problem{{.text = fmt::format(
                        "group {}: {} number {} did not finish within {:.0f} s on rank {}", lane.id,
                        to_string(call->kind), call->number, options_.timeout_s, rank_)},
                   lane.id,
                   call->number,
                   lane.members};
  }
  return {};
}

std::optional<Watch::Problem> Watch::broken_lane() const {
  for (const auto& lane : lanes()) {
    Result state = Result::Success;
    const Result status = nccl_->comm_get_async_error(lane->comm, &state);
    if (status == Result::Success) {
      if (state == Result::Success || state == Result::InProgress) continue;
    } else {
      state = status;
    }
    return Problem{
        {.text = fmt::format("group {}: {} reports an error after call {} of rank {}: {}", lane->id,
                             nccl_->name(), lane->started.load(), rank_,
                             nccl_->describe(state, lane->comm))},
        lane->id,
        lane->started,
        lane->members};
  }
  return {};
}

std::optional<Watch::Problem> Watch::host_stuck() const {
  const double timeout_s = std::max(options_.timeout_s, kMinHostTimeout_s);
  const std::lock_guard lock(lanes_mutex_);
  if (inside_.what == nullptr || seconds(Clock::now() - inside_.since) < timeout_s) return {};
  return Problem{{.text = fmt::format("group {}: {} did not return within {:.0f} s on rank {}",
                                      inside_.lane == nullptr ? "?" : inside_.lane->id,
                                      inside_.what, timeout_s, rank_)}};
}

std::string Watch::call_counts() const {
  std::vector<LaneCalls> counts;
  for (const auto& lane : lanes()) counts.push_back({lane->id, lane->started, lane->finished});
  return to_text(counts);
}

// Finds the ranks that a call waits for. Called without the lock, since other ranks ask too.
RankFailure Watch::missing_ranks(const Problem& problem) const {
  std::vector<int> others = problem.members;
  std::erase(others, rank_);
  return find_missing_ranks(others, roll_call_.ask(others, kAnswerTimeoutMs), problem.id,
                            problem.number);
}

void Watch::report(const Problem& problem, std::unique_lock<std::mutex> lock) {
  // If the host hangs in NCCL with the lock, only the end of the process can stop the GPU.
  const bool locked = lock.owns_lock();
  if (locked) {
    failure_ = problem.failure;
    abort_all();
    lock.unlock();
  }
  RankFailure failure = problem.failure;
  if (!problem.members.empty()) {
    failure = missing_ranks(problem);
    failure.text = problem.failure.text + "; " + failure.text;
  }
  if (locked) {
    lock.lock();
    failure_ = failure;
    reported_ = true;
    lock.unlock();
    report_done_.notify_all();
  }
  options_.on_failure(failure);
}

void Watch::throw_after_error(std::unique_lock<std::mutex>& lock) {
  if (!failure_) return;
  report_done_.wait_for(lock, kReportTimeout, [this] { return reported_; });
  throw CommunicationFailure(*failure_);
}

void Watch::abandon() {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = RankFailure{.text = "communication was abandoned after an error"};
  reported_ = true;
  abort_all();
}

// Aborts all at once: freeing one communicator waits for the GPU, and so for kernels of the others.
void Watch::abort_all() {
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto progress = std::make_shared<Progress>();
  std::thread helper([progress, nccl = nccl_, lanes = lanes(), device = options_.device] {
    gpu::select_device(device);
    nccl->group_start();
    for (const auto& lane : lanes) nccl->comm_abort(lane->comm);
    nccl->group_end();
    const std::lock_guard lock(progress->mutex);
    progress->done = true;
    progress->changed.notify_all();
  });
  std::unique_lock lock(progress->mutex);
  const bool done = progress->changed.wait_for(lock, kAbortTimeout, [&] { return progress->done; });
  lock.unlock();
  done ? helper.join() : helper.detach();
}

}  // namespace kintsugi::nccl
