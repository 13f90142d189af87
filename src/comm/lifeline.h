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

// A thread of TCP sockets from every rank to rank 0, beside whatever the ranks compute with. It
// notices when a process is gone, whatever the reason, and ends the job instead of letting it hang:
// rank 0 reports the first failure, tells all others, and then every rank is ended.
//
// mpirun, too, ends a job when a process dies: SIGTERM at once, SIGKILL a second later. Handle the
// first, or rank 0 may not come to its report.
//
// One thread per rank watches; the callbacks run there.
class Lifeline {
 public:
  struct Callbacks {
    // On rank 0: what a rank has to say (a warning).
    std::function<void(int rank, const std::string& text)> on_message;
    // On rank 0, once, for the first failure, its own too: log it and flush.
    std::function<void(const RankFailure&)> on_failure;
    // On every rank but the one that failed by fail(): end the process, with exit_code; what it
    // waits for will never come.
    std::function<void(const RankFailure&)> end;
  };

  // Every rank of the world calls it; Failure if they do not find each other in 30 s.
  Lifeline(World& world, Callbacks callbacks);
  ~Lifeline();  // without goodbye() or fail() before, the others take this rank for lost
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  void say(const std::string& text);
  // This rank gives up: returns when rank 0 has reported it and told the others (or cannot), so
  // that the process may end.
  void fail(const std::string& text, int exit_code = 1);
  // This rank is done: returns when all ranks are, or when one failed.
  void goodbye();

 private:
  struct Peer {
    Socket socket;
    bool done = false;
  };
  enum class State { Running, Failing, Leaving, Over };

  void meet_all(const std::string& password, Listener& listener);
  void meet_first(const std::string& address, bool one_node);
  void tell_first(char type, const std::string& text);
  void watch();
  void watch_peers();  // rank 0
  void watch_first();  // the others
  void settle(RankFailure failure);
  std::vector<int> wait_for_news();
  void change(State state);
  void wait_until_over(int seconds);

  const int rank_;
  const int size_;
  const Callbacks callbacks_;
  std::vector<Peer> peers_;  // on rank 0 all by rank; elsewhere rank 0
  int wake_read_ = -1, wake_write_ = -1;

  std::mutex send_mutex_;  // say() may come from any thread
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::Running;
  std::optional<RankFailure> own_failure_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace kintsugi
