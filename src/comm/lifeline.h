#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_failure.h"
#include "comm/socket.h"

namespace kintsugi {

// When a rank is given up. 0: never.
struct LifelineLimits {
  // Without a sign of life: it was stopped, or its node is down. Three times as long before the
  // first step: allocating and page-locking much memory may delay all threads of a process.
  double silence_s = 10;
  double call_s = 0;  // waiting for one call inside a step
  double beat_s = 1;  // interval of the signs of life
};

// Failure detector: every rank has a TCP connection to rank 0, independent of MPI and NCCL. When a
// process is gone, for any reason, or does not answer, it ends the job instead of letting it hang:
// rank 0 reports the first failure and notifies the other ranks, and then all ranks exit.
//
// Every rank sends a sign of life (a beat) each second to rank 0, and rank 0 to every rank. A rank
// that was itself stopped for a while, such as a suspended job, gives the others time to continue.
// A rank that gives rank 0 up says so before it ends: if rank 0 continues, it was at fault itself.
//
// mpirun also ends a job when a process dies: SIGTERM at once, SIGKILL a second later. Handle
// SIGTERM, or rank 0 may be killed before it has reported.
//
// Each rank has one watcher thread, which runs the callbacks.
class Lifeline {
 public:
  struct Callbacks {
    // On rank 0: a message (a warning) from a rank.
    std::function<void(int rank, const std::string& text)> on_message;
    // On rank 0, once, for the first failure, which may be its own: log it and flush. `positions`:
    // where the ranks were (RankCalls as JSON), if a rank was lost, did not answer or did not
    // make a call.
    std::function<void(const RankFailure&, const std::vector<std::string>& positions)> on_failure;
    // On every rank except the one that called fail(): exit the process with its exit code. The
    // main thread may wait for a rank that is gone.
    std::function<void(const RankFailure&)> end;
    // Optional, on every rank. The position of this rank as JSON, and that of the rank `lost` (-1:
    // none) if its record is on this node.
    std::function<std::vector<std::string>(int lost)> positions = {};
    // Optional: how long this rank has been waiting for a call inside a step.
    std::function<double()> waiting_s = {};
    // Optional: whether this rank has begun a step.
    std::function<bool()> has_begun = {};
  };

  // All ranks of the world construct it. Throws Failure if they do not connect within 30 s.
  Lifeline(World& world, Callbacks callbacks, LifelineLimits limits = {});
  ~Lifeline();  // without goodbye() or fail() before, the others report this rank as lost
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // All ranks call it with the same values.
  void set_limits(double silence_s, double call_s);
  void say(const std::string& text);
  // Reports that this rank failed, of which others may be guilty. Returns after rank 0 has logged
  // it and notified the others, or after a timeout; then the process may exit.
  void fail(RankFailure failure);
  // Reports that this rank is done. Returns when all ranks are done or one has failed.
  void goodbye();
  // On rank 0: fills in the nodes of the culprits.
  RankFailure with_nodes(RankFailure failure) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    Socket socket;
    std::string node = {};
    bool done = false;
    Clock::time_point heard = Clock::now();
    double waiting_s = 0;   // according to its last beat
    bool answered = false;  // ask_positions()
  };
  enum class State { Running, Failing, Leaving, Over };

  void accept_all(const std::string& password, Listener& listener);
  void connect_to_first(const std::string& address, bool one_node);
  void send_to_first(char type, const std::string& text);
  void watch();
  void watch_peers();  // rank 0
  void watch_first();  // the others
  enum class From { This, Others };
  void end_job(RankFailure failure, From from);
  std::vector<int> wait_for_input(Clock::duration timeout);
  // Sends beats that are due. Returns the time until the next ones.
  Clock::duration beat();
  double silence_limit_s() const;  // 0: none
  // Returns a peer that has been silent for too long, or -1.
  int silent_peer();
  // Rank 0: reads what a peer has sent. Returns its failure, if it sent one or was lost.
  std::optional<RankFailure> read_peer(int rank);
  std::optional<RankFailure> read_peers(const std::vector<int>& input);
  // Rank 0: a rank that waits for too long, and the rank that it waits for.
  std::optional<RankFailure> find_stuck();
  // Rank 0: asks all ranks where they are, for answers_.
  void ask_positions(int lost);
  RankFailure lost(int rank, FailureKind kind, const std::string& why) const;
  // Rank 0: the ranks that gave this rank up while it was stopped.
  RankFailure given_up_by(int rank, const std::string& silence_s) const;
  std::string node_of(int rank) const;
  void set_state(State state);
  std::optional<RankFailure> own_failure();  // what fail() was called with
  void wait_until_over(int seconds);

  const int rank_;
  const int size_;
  const bool one_node_;
  const Callbacks callbacks_;
  const double beat_s_;
  std::atomic<double> silence_s_, call_s_;
  std::vector<Peer> peers_;  // on rank 0: all ranks; elsewhere: rank 0
  FileDescriptor wake_read_, wake_write_;
  Clock::time_point next_beat_ = Clock::now(), last_round_ = Clock::now();
  std::vector<std::string> answers_;  // to ask_positions()

  std::mutex send_mutex_;  // say() is thread-safe
  std::mutex mutex_;       // guards the rest
  std::condition_variable changed_;
  State state_ = State::Running;
  std::optional<RankFailure> own_failure_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace kintsugi
