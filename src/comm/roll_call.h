#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_failure.h"
#include "comm/socket.h"

namespace kintsugi {

// Lets a rank that waits for others ask each of them for its status, whatever their main threads
// are doing. One thread per rank answers.
class RollCall {
 public:
  // All ranks of the world, which must be for host memory, construct it. `answer` runs in the
  // answering thread.
  RollCall(World& world, std::function<std::string()> answer);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  // Returns the answers of these ranks in their order; empty for a rank that does not answer within
  // the timeout. A few hundred ranks are asked in parallel. Thread-safe.
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
  // Asks the ranks that have not answered yet at their n-th address.
  void ask_round(const std::vector<int>& ranks, std::size_t address,
                 std::vector<std::optional<std::string>>& answers,
                 Clock::time_point deadline) const;

  const std::function<std::string()> answer_;
  Listener listener_;
  std::string password_;
  std::vector<std::string> endpoints_;  // by rank: password, host, port, addresses
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// The calls of one rank in a lane: a group, or one direction between two ranks, whose calls run one
// after the other. Ranks send them to each other in a roll call.
struct LaneCalls {
  std::string id;
  std::int64_t started = 0, finished = 0;
  bool operator==(const LaneCalls&) const = default;
};
std::string to_text(const std::vector<LaneCalls>& lanes);
std::vector<LaneCalls> lane_calls_of(const std::string& text);  // leaves out damaged lines

// Who is at fault if a call of a lane does not finish: ranks that have not made it although they
// wait for no call themselves (Stuck), and ranks that do not answer while others do (Silent).
// `answers`: of the ranks `asked`, in their order; empty without an answer.
RankFailure find_missing_ranks(const std::vector<int>& asked,
                               const std::vector<std::optional<std::string>>& answers,
                               const std::string& lane, std::int64_t number);

}  // namespace kintsugi
