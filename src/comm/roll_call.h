#pragma once

#include <atomic>
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

  // What a rank says of itself; nothing if it does not in that time. From any thread.
  std::optional<std::string> ask(int rank, int timeout_ms) const;

 private:
  void serve();

  const std::function<std::string()> answer_;
  Listener listener_;
  std::string password_;
  std::vector<std::string> places_;  // by rank: password, host, port, addresses
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace kintsugi
