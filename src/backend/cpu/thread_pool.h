#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kintsugi {

// Threads that run the tasks 0 … n-1 of one loop at a time. The caller is thread 0. Tasks start in
// order on any thread, so a result may depend on the task but never on the thread. A worker spins
// for some microseconds before it sleeps, because the next loop of a training step usually starts
// that soon. Never allocates after construction.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls f(task, thread) for every task; returns when all are done. f must not throw.
  template <class F>
  void run(std::int64_t tasks, const F& f) {
    if (tasks <= 1 || threads_ == 1) {
      for (std::int64_t task = 0; task < tasks; ++task) f(task, 0);
      return;
    }
    run_tasks(tasks, &f, [](const void* callable, std::int64_t task, int thread) {
      (*static_cast<const F*>(callable))(task, thread);
    });
  }

  // Splits [0, n) into ranges of at least `grain`, at most one per thread, and calls
  // f(begin, end, thread) for each.
  template <class F>
  void run_ranges(std::int64_t n, std::int64_t grain, const F& f) {
    const std::int64_t ranges =
        std::max<std::int64_t>(1, std::min<std::int64_t>(threads_, n / grain));
    run(ranges, [&](std::int64_t range, int thread) {
      f(n * range / ranges, n * (range + 1) / ranges, thread);
    });
  }

 private:
  using Trampoline = void (*)(const void*, std::int64_t, int);
  void run_tasks(std::int64_t tasks, const void* callable, Trampoline call);
  void work(int thread);
  void worker(int thread);
  void join();

  int threads_;
  std::vector<std::thread> workers_;
  const void* callable_ = nullptr;
  Trampoline call_ = nullptr;
  std::int64_t tasks_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace kintsugi
