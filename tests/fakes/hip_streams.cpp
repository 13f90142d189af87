// The functions of a HIP runtime that the stand-in for RCCL needs. A stream is any number; each has
// a thread, which lives as long as the process.
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace {

class Stream {
 public:
  Stream() {
    std::thread([this] { work(); }).detach();
  }
  void add(void (*function)(void*), void* data) {
    const std::lock_guard lock(mutex_);
    calls_.emplace_back(function, data);
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return calls_.empty(); });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !calls_.empty(); });
      const auto [function, data] = calls_.front();
      lock.unlock();
      function(data);
      lock.lock();
      calls_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<void (*)(void*), void*>> calls_;
};

Stream& stream_of(void* number) {
  static std::mutex mutex;
  static auto& streams = *new std::map<void*, Stream>;  // used by threads that never end
  const std::lock_guard lock(mutex);
  return streams[number];
}

}  // namespace

extern "C" int hipLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  stream_of(stream).add(function, data);
  return 0;
}

extern "C" int hipStreamSynchronize(void* stream) {
  stream_of(stream).synchronize();
  return 0;
}
