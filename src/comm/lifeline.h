#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/socket.h"

namespace kintsugi {

struct RankFailure {
  int rank = 0;
  int exit_code = 1;
  std::string text;  // "rank 3: …" or "rank 3 was lost: …"
};

// Failure detector: every rank has a TCP connection to rank 0, independent of MPI and NCCL. When a
// process is gone, for any reason, it ends the job instead of letting it hang: rank 0 reports the
// first failure and notifies the other ranks, and then all ranks exit.
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
    // On rank 0, once, for the first failure, which may be its own: log it and flush.
    std::function<void(const RankFailure&)> on_failure;
    // On every rank except the one that called fail(): exit the process with exit_code. The main
    // thread may wait for a rank that is gone.
    std::function<void(const RankFailure&)> end;
  };

  // All ranks of the world construct it. Throws Failure if they do not connect within 30 s.
  Lifeline(World& world, Callbacks callbacks);
  ~Lifeline();  // without goodbye() or fail() before, the others report this rank as lost
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  void say(const std::string& text);
  // Reports that this rank failed. Returns after rank 0 has logged it and notified the others, or
  // after a timeout; then the process may exit.
  void fail(const std::string& text, int exit_code = 1);
  // Reports that this rank is done. Returns when all ranks are done or one has failed.
  void goodbye();

 private:
  struct Peer {
    Socket socket;
    bool done = false;
  };
  enum class State { Running, Failing, Leaving, Over };

  void accept_all(const std::string& password, Listener& listener);
  void connect_to_first(const std::string& address, bool one_node);
  void send_to_first(char type, const std::string& text);
  void watch();
  void watch_peers();  // rank 0
  void watch_first();  // the others
  void end_job(RankFailure failure);
  std::vector<int> wait_for_input();
  void set_state(State state);
  void wait_until_over(int seconds);

  const int rank_;
  const int size_;
  const Callbacks callbacks_;
  std::vector<Peer> peers_;  // on rank 0: all ranks; elsewhere: rank 0
  int wake_read_ = -1, wake_write_ = -1;

  std::mutex send_mutex_;  // say() is thread-safe
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::Running;
  std::optional<RankFailure> own_failure_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace kintsugi
