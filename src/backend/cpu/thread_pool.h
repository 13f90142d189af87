#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kintsugi {

// Threads that run the tasks 0 … n-1 of one loop at a time, the caller being thread 0. Tasks are
// handed out in order, so a result may depend on the task but never on the thread that ran it. A
// worker spins for some microseconds before it sleeps, because the next loop of a training step is
// usually that close. Never allocates after construction.
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

  // Calls f(begin, end, thread) over pieces of [0, n), at least `grain` long and about one per
  // thread.
  template <class F>
  void run_ranges(std::int64_t n, std::int64_t grain, const F& f) {
    const std::int64_t pieces =
        std::max<std::int64_t>(1, std::min<std::int64_t>(threads_, n / grain));
    run(pieces, [&](std::int64_t piece, int thread) {
      f(n * piece / pieces, n * (piece + 1) / pieces, thread);
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
