#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/socket.h"

namespace kintsugi {

// Lets a rank that waits for others ask each of them where it stands, while its main thread may be
// anywhere. A thread per rank answers.
class RollCall {
 public:
  // Every rank of the world calls it; the world's groups are on host memory. `answer` runs in that
  // thread.
  RollCall(World& world, std::function<std::string()> answer);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // What each of these ranks says of itself, in their order; nothing if it does not in that time.
  // All are asked at once, a few hundred at a time. From any thread.
  std::vector<std::optional<std::string>> ask(const std::vector<int>& ranks, int timeout_ms) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::string password;
    int port = 0;
    std::vector<std::string> addresses;
  };
  void serve();
  Peer peer(int rank) const;
  // Asks those without an answer at their n-th address.
  void ask_round(const std::vector<int>& ranks, std::size_t address,
                 std::vector<std::optional<std::string>>& answers,
                 Clock::time_point deadline) const;

  const std::function<std::string()> answer_;
  Listener listener_;
  std::string password_;
  std::vector<std::string> places_;  // by rank: password, host, port, addresses
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace kintsugi
