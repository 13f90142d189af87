#include "backend/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr int kSpins = 4000;  // some tens of microseconds

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // about as long as x86's pause; `yield` returns at once
#endif
}

template <class T>
void wait_until_not(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(std::max(1, threads)) {
  workers_.reserve(static_cast<std::size_t>(threads_ - 1));
  try {
    for (int thread = 1; thread < threads_; ++thread)
      workers_.emplace_back([this, thread] { worker(thread); });
  } catch (const std::system_error& error) {
    join();
    user_error("cannot start {} threads: {}; set `threads` to a smaller number", threads_,
               error.what());
  }
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::join() {
  stop_.store(true);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run_tasks(std::int64_t tasks, const void* callable, Trampoline call) {
  callable_ = callable;
  call_ = call;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(0);
  for (int busy = busy_.load(std::memory_order_acquire); busy != 0;
       busy = busy_.load(std::memory_order_acquire))
    wait_until_not(busy_, busy);
}

void ThreadPool::work(int thread) {
  for (std::int64_t task = next_.fetch_add(1, std::memory_order_relaxed); task < tasks_;
       task = next_.fetch_add(1, std::memory_order_relaxed))
    call_(callable_, task, thread);
}

void ThreadPool::worker(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    wait_until_not(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    work(thread);
    if (busy_.fetch_sub(1, std::memory_order_release) == 1) busy_.notify_one();
  }
}

}  // namespace kintsugi
