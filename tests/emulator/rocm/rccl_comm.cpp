#include "emulator/rocm/rccl_comm.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace kintsugi::rccl {
namespace {

using Clock = std::chrono::steady_clock;

// std::atomic::wait works inside one process only.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec moment{.tv_sec = 0, .tv_nsec = 5'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &moment, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Copies between `bytes` and the ring `buffer`, whose position is `at`.
template <class Copy>
void for_each_run(std::size_t at, std::size_t bytes, Copy&& copy) {
  const std::size_t begin = at % kMailboxBytes, first = std::min(bytes, kMailboxBytes - begin);
  copy(begin, std::size_t{0}, first);
  copy(std::size_t{0}, first, bytes - first);
}

// The others notice an abort later, as they notice a closed connection: their own timeouts, which
// end at the same time, come first.
constexpr std::int64_t kNewsDelay_ns = 300'000'000;

std::int64_t now_ns() {  // the same in all processes
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

struct LastError {
  std::mutex mutex;
  std::string text;
};

LastError& stored_error() {
  static LastError* const error = new LastError;  // outlives every stream
  return *error;
}

}  // namespace

double timeout_s() {
  static const char* const text = std::getenv("KINTSUGI_FAKE_RCCL_TIMEOUT_S");
  return text == nullptr ? 300 : std::atof(text);
}

void set_last_error(const std::string& text) {
  const std::lock_guard lock(stored_error().mutex);
  stored_error().text = text;
}

const char* last_error() {
  thread_local std::string copy;
  const std::lock_guard lock(stored_error().mutex);
  copy = stored_error().text;
  return copy.c_str();
}

Comm::Comm(const std::string& name, int ranks, int rank) : name_(name), ranks_(ranks), rank_(rank) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) throw Result::InvalidArgument;
  const auto n = static_cast<std::size_t>(ranks);
  bytes_ = sizeof(Header) + n * kSlotBytes + n * n * sizeof(Mailbox);
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0) throw Result::SystemError;
  // Allocated now: without memory a later access would end the process.
  const bool sized = posix_fallocate(file, 0, static_cast<off_t>(bytes_)) == 0;
  void* const memory =
      sized ? mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) {
    shm_unlink(name.c_str());
    throw Result::SystemError;
  }
  header_ = static_cast<Header*>(memory);
  std::uint32_t nobody = 0;
  const auto wanted = static_cast<std::uint32_t>(ranks);
  const bool same = header_->ranks.compare_exchange_strong(nobody, wanted) || nobody == wanted;
  if (!same || header_->rank[rank].present.exchange(1) != 0) {
    munmap(memory, bytes_);
    throw Result::InvalidUsage;
  }
  // All have opened it: its name is not needed any more, and its memory ends with the processes.
  if (header_->present.fetch_add(1) + 1 == wanted) shm_unlink(name.c_str());
  futex_wake(header_->present);
}

Comm::~Comm() { munmap(header_, bytes_); }

bool Comm::wait_for_all() {
  for (;;) {
    const std::uint32_t present = header_->present;
    if (present == header_->ranks) return true;
    if (wait_for_change(header_->present, present)) continue;
    shm_unlink(name_.c_str());
    return false;
  }
}

void Comm::abort() { stop(Result::InvalidUsage); }

void Comm::fail(Result result, const std::string& why) {
  if (stop(result)) set_last_error(why);
}

bool Comm::stop(Result result) {
  int none = 0;
  std::int64_t never = 0;
  if (!error_.compare_exchange_strong(none, static_cast<int>(result))) return false;
  header_->aborted_ns.compare_exchange_strong(never, now_ns());
  return true;
}

Result Comm::error() const {
  if (const int own = error_; own != 0) return static_cast<Result>(own);
  const std::int64_t aborted_ns = header_->aborted_ns;
  const bool known = aborted_ns != 0 && now_ns() > aborted_ns + kNewsDelay_ns;
  return known ? Result::RemoteError : Result::Success;
}

bool Comm::wait_for_change(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const auto begin = Clock::now();
  while (word == seen) {
    if (stopped()) return false;
    if (std::chrono::duration<double>(Clock::now() - begin).count() > timeout_s())
      fail(Result::SystemError, "a rank did not come in time");
    futex_wait(word, seen);
  }
  return true;
}

bool Comm::meet(Barrier& barrier) {
  const std::uint32_t generation = barrier.generation;
  if (barrier.arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
    barrier.arrived = 0;
    ++barrier.generation;
    futex_wake(barrier.generation);
    return true;
  }
  return wait_for_change(barrier.generation, generation);
}

bool Comm::meet() { return meet(header_->calls); }

std::byte* Comm::slot(int rank) const {
  return reinterpret_cast<std::byte*>(header_ + 1) + static_cast<std::size_t>(rank) * kSlotBytes;
}

bool Comm::agree(const Signature& mine) {
  header_->rank[rank_].signature = mine;
  if (!meet()) return false;
  for (int rank = 0; rank < ranks_; ++rank)
    if (header_->rank[rank].signature != mine) {
      fail(Result::InvalidUsage, "the ranks make different calls");
      return false;
    }
  return meet();
}

Comm::Mailbox& Comm::mailbox(int from, int to) const {
  auto* const boxes = reinterpret_cast<Mailbox*>(slot(ranks_));
  return boxes[from * ranks_ + to];
}

void Comm::ring(int rank) const {
  ++header_->rank[rank].bell;
  futex_wake(header_->rank[rank].bell);
}

std::size_t Comm::push(int to, std::span<const std::byte> bytes) {
  Mailbox& box = mailbox(rank_, to);
  const std::uint64_t written = box.written;
  const std::size_t moved =
      std::min<std::size_t>(bytes.size(), kMailboxBytes - (written - box.read));
  if (moved == 0) return 0;
  for_each_run(written, moved, [&](std::size_t in_box, std::size_t at, std::size_t count) {
    std::memcpy(box.bytes + in_box, bytes.data() + at, count);
  });
  box.written = written + moved;
  ring(to);
  return moved;
}

std::size_t Comm::pull(int from, std::span<std::byte> bytes) {
  Mailbox& box = mailbox(from, rank_);
  const std::uint64_t read = box.read;
  const std::size_t moved = std::min<std::size_t>(bytes.size(), box.written - read);
  if (moved == 0) return 0;
  for_each_run(read, moved, [&](std::size_t in_box, std::size_t at, std::size_t count) {
    std::memcpy(bytes.data() + at, box.bytes + in_box, count);
  });
  box.read = read + moved;
  ring(from);
  return moved;
}

std::uint32_t Comm::bell() const { return header_->rank[rank_].bell; }

void Comm::wait_for_bell(std::uint32_t seen) const { futex_wait(header_->rank[rank_].bell, seen); }

bool Comm::split(int color, int key, Group& group) {
  header_->rank[rank_].color = color;
  header_->rank[rank_].key = key;
  if (!meet(header_->splits)) return false;
  const auto before = [&](int a, int b) {
    const Rank &x = header_->rank[a], &y = header_->rank[b];
    return x.key != y.key ? x.key < y.key : a < b;
  };
  group = {.name = name_ + "-" + std::to_string(splits_++) + "-" + std::to_string(color),
           .ranks = 0,
           .rank = 0};
  for (int other = 0; other < ranks_; ++other) {
    if (header_->rank[other].color != color) continue;
    ++group.ranks;
    if (before(other, rank_)) ++group.rank;
  }
  return meet(header_->splits);
}

void* Comm::add_memory() {
  const std::lock_guard lock(mutex_);
  memory_.insert(++handles_);
  return reinterpret_cast<void*>(handles_);
}

bool Comm::remove_memory(void* handle) {
  const std::lock_guard lock(mutex_);
  return memory_.erase(reinterpret_cast<std::uintptr_t>(handle)) > 0;
}

}  // namespace kintsugi::rccl
