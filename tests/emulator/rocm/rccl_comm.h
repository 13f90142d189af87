#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>

namespace kintsugi::rccl {

// NCCL's numbers.
enum class Result : int {
  Success = 0,
  UnhandledDeviceError = 1,
  SystemError = 2,
  InternalError = 3,
  InvalidArgument = 4,
  InvalidUsage = 5,
  RemoteError = 6,
};

constexpr int kMaxRanks = 64;
constexpr std::size_t kSlotBytes = std::size_t{128} << 10, kMailboxBytes = std::size_t{32} << 10;

// What a rank calls, which all ranks must call alike.
struct Signature {
  std::uint64_t kind, count, type, op, root;
  bool operator==(const Signature&) const = default;
};

// The ranks of one communicator, on one host, meet in shared memory. It has a slot for every rank,
// which the others read, and a mailbox for every pair. Everything that waits ends with false when a
// rank has aborted the communicator, or after KINTSUGI_FAKE_RCCL_TIMEOUT_S (300).
class Comm {
 public:
  // Does not wait for the other ranks. Throws Result.
  Comm(const std::string& name, int ranks, int rank);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return ranks_; }

  bool wait_for_all();  // until every rank has constructed it
  void abort();
  void fail(Result result, const std::string& why);
  Result error() const;
  bool stopped() const { return error() != Result::Success; }

  // ---- collectives: all ranks write their slots, meet, read those of the others, and meet
  bool meet();
  std::byte* slot(int rank) const;
  bool agree(const Signature& mine);  // meets

  // ---- messages: how many bytes were moved, perhaps 0
  std::size_t push(int to, std::span<const std::byte> bytes);
  std::size_t pull(int from, std::span<std::byte> bytes);
  // Read it before push() and pull(), then wait until another rank has moved something, or briefly.
  std::uint32_t bell() const;
  void wait_for_bell(std::uint32_t seen) const;

  // ---- a split: the name of the new communicator, and this rank's position
  struct Group {
    std::string name;
    int ranks, rank;
  };
  bool split(int color, int key, Group& group);

  // ---- registered memory
  void* add_memory();
  bool remove_memory(void* handle);

 private:
  struct Barrier {
    std::atomic<std::uint32_t> arrived, generation;
  };
  struct Rank {
    std::atomic<std::uint32_t> present, bell;
    Signature signature;
    int color, key;
  };
  // In a new segment all bytes are 0.
  struct Header {
    std::atomic<std::uint32_t> ranks, present;
    std::atomic<std::int64_t> aborted_ns;
    Barrier calls, splits;
    Rank rank[kMaxRanks];
  };
  struct Mailbox {
    std::atomic<std::uint64_t> written, read;
    std::byte bytes[kMailboxBytes];
  };

  bool stop(Result result);  // false: it had an error already
  bool meet(Barrier& barrier);
  // Waits until `word` is no longer `seen`.
  bool wait_for_change(std::atomic<std::uint32_t>& word, std::uint32_t seen);
  Mailbox& mailbox(int from, int to) const;
  void ring(int rank) const;

  const std::string name_;
  const int ranks_, rank_;
  std::size_t bytes_ = 0;
  Header* header_ = nullptr;
  std::atomic<int> error_ = 0;
  std::mutex mutex_;
  std::set<std::uintptr_t> memory_;  // handles
  std::uintptr_t handles_ = 0;
  int splits_ = 0;
};

double timeout_s();

void set_last_error(const std::string& text);
const char* last_error();  // valid until the calling thread calls it again

}  // namespace kintsugi::rccl
