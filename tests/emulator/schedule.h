#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "emulator/executor.h"

// In which order threads and blocks run, and on which core.
namespace kintsugi::emulator {

struct Order {
  enum class Kind : std::uint8_t { Forward, Reverse, Random } kind = Kind::Forward;
  std::uint64_t seed = 0;
};
Order order_of_environment();

// The threads of a block that can go on.
class Runnable {
 public:
  // Threads 0 to count - 1.
  void reset(unsigned count, const Order& order, std::uint64_t block);
  void clear() { words_.fill(0); }
  void add(unsigned thread) { words_[thread / 64] |= std::uint64_t{1} << thread % 64; }
  int take();  // -1: none

 private:
  int first_from(unsigned thread) const;  // -1: none
  int last() const;

  std::array<std::uint64_t, kMaxThreads / 64> words_{};
  unsigned count_ = 0;
  Order order_;
  std::uint64_t random_ = 0;
};

// A kernel that runs.
struct Launch {
  Grid grid;
  std::function<void()> body;
  std::uint64_t block_count = 0;
  std::uint32_t first_block = 0;  // numbers of blocks are unique in the process
  Order order = order_of_environment();

  std::atomic<std::uint64_t> next_block{0};
  std::mutex mutex;
  std::condition_variable done;
  unsigned cores = 0;        // that take blocks now
  std::exception_ptr error;  // the first
};

// Calls run_block for every block, on this core and on those of a small pool. Rethrows the first
// error; blocks that have not begun then never will.
void run_blocks(const std::shared_ptr<Launch>& launch,
                void (*run_block)(const Launch& launch, std::uint64_t block));

}  // namespace kintsugi::emulator
