#include "emulator/schedule.h"

#include <bit>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>

#include "core/error.h"
#include "emulator/race_check.h"

namespace kintsugi::emulator {
namespace {

// A number that looks random, from one that does not (splitmix64).
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Order order_of_environment() {
  const char* text = std::getenv("KINTSUGI_EMULATOR_ORDER");
  const std::string order = text != nullptr && *text != '\0' ? text : "forward";
  if (order == "forward") return {};
  if (order == "reverse") return {.kind = Order::Kind::Reverse};
  char* end = nullptr;
  const std::uint64_t seed = std::strtoull(order.c_str(), &end, 10);
  KINTSUGI_CHECK(*end == '\0', "KINTSUGI_EMULATOR_ORDER is '{}', not forward, reverse or a number",
                 order);
  return {.kind = Order::Kind::Random, .seed = seed};
}

// ---- threads
void Runnable::reset(unsigned count, const Order& order, std::uint64_t block) {
  clear();
  for (unsigned i = 0; i < count; i += 64)
    words_[i / 64] = count - i >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (count - i)) - 1;
  count_ = count;
  order_ = order;
  random_ = scramble(order.seed ^ scramble(block));
}

int Runnable::take() {
  int thread = -1;
  switch (order_.kind) {
    case Order::Kind::Forward:
      thread = first_from(0);
      break;
    case Order::Kind::Reverse:
      thread = last();
      break;
    case Order::Kind::Random:
      random_ = scramble(random_);
      thread = first_from(static_cast<unsigned>(random_ % count_));
      if (thread < 0) thread = first_from(0);
      break;
  }
  if (thread >= 0) words_[thread / 64] &= ~(std::uint64_t{1} << thread % 64);
  return thread;
}

int Runnable::first_from(unsigned thread) const {
  std::uint64_t mask = ~std::uint64_t{0} << thread % 64;
  for (unsigned i = thread / 64; i * 64 < count_; ++i, mask = ~std::uint64_t{0})
    if (const std::uint64_t word = words_[i] & mask; word != 0)
      return static_cast<int>(i * 64) + std::countr_zero(word);
  return -1;
}

int Runnable::last() const {
  for (unsigned i = (count_ + 63) / 64; i-- > 0;)
    if (words_[i] != 0) return static_cast<int>(i * 64) + 63 - std::countl_zero(words_[i]);
  return -1;
}

// ---- blocks
namespace {

using RunBlock = void (*)(const Launch&, std::uint64_t);

std::uint64_t block_at(const Launch& launch, std::uint64_t i) {
  switch (launch.order.kind) {
    case Order::Kind::Forward:
      return i;
    case Order::Kind::Reverse:
      return launch.block_count - 1 - i;
    case Order::Kind::Random:
      return (i + scramble(launch.order.seed)) % launch.block_count;
  }
  return i;
}

// Runs blocks of a launch until none is left.
void take_blocks(Launch& launch, RunBlock run_block) {
  {
    const std::lock_guard lock(launch.mutex);
    ++launch.cores;
  }
  try {
    for (std::uint64_t i; (i = launch.next_block++) < launch.block_count;)
      run_block(launch, block_at(launch, i));
  } catch (...) {
    launch.next_block = launch.block_count;
    const std::lock_guard lock(launch.mutex);
    if (!launch.error) launch.error = std::current_exception();
  }
  const std::lock_guard lock(launch.mutex);
  --launch.cores;
  launch.done.notify_all();
}

// Threads that help those that launch kernels. They run as long as the process.
class Helpers {
 public:
  explicit Helpers(unsigned count) : count_(count) {
    for (unsigned i = 0; i < count; ++i) std::thread([this] { work(); }).detach();
  }

  void help(const std::shared_ptr<Launch>& launch, RunBlock run_block) {
    {
      const std::lock_guard lock(mutex_);
      for (unsigned i = 0; i < count_; ++i)
        jobs_.push_back([launch, run_block] { take_blocks(*launch, run_block); });
    }
    changed_.notify_all();
  }

 private:
  [[noreturn]] void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !jobs_.empty(); });
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
    }
  }

  const unsigned count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
};

unsigned core_count() {
  const char* text = std::getenv("KINTSUGI_EMULATOR_CORES");
  const long count = text != nullptr ? std::atol(text) : 2;
  return count < 1 ? 1 : static_cast<unsigned>(count);
}

}  // namespace

void run_blocks(const std::shared_ptr<Launch>& launch, RunBlock run_block) {
  // The race check sees one access at a time.
  if (launch->block_count > 1 && !race_check::active() && core_count() > 1) {
    static auto* const helpers = new Helpers(core_count() - 1);  // nobody waits for them at exit
    helpers->help(launch, run_block);
  }
  take_blocks(*launch, run_block);
  // A helper that begins only now finds no block.
  std::unique_lock lock(launch->mutex);
  launch->done.wait(lock, [&] { return launch->cores == 0; });
  if (launch->error) std::rethrow_exception(launch->error);
}

}  // namespace kintsugi::emulator
