#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/rank_failure.h"
#include "comm/socket.h"

namespace kintsugi {

// The connection between rank 0 of a run and its supervisor (launch/supervisor.h), which waits
// outside of the launcher. Its address is in the environment of the ranks.
inline constexpr const char* kSupervisorVariable = "KINTSUGI_SUPERVISOR";

// The end on rank 0. Sends the step each second, and what becomes of the run.
class SupervisorLink {
 public:
  struct Callbacks {
    std::function<std::int64_t()> step;                   // the last step that has begun
    std::function<double()> silence_s;                    // when rank 0 is given up; 0: never
    std::function<void(const std::string& reason)> stop;  // save and stop; in another thread
  };
  // Returns nothing without a supervisor, or with a warning if it cannot be reached.
  static std::unique_ptr<SupervisorLink> connect(const char* address, Callbacks callbacks);
  ~SupervisorLink();
  SupervisorLink(const SupervisorLink&) = delete;
  SupervisorLink& operator=(const SupervisorLink&) = delete;

  // Thread-safe.
  void ended(const RunEnd& end);

 private:
  SupervisorLink(Socket socket, Callbacks callbacks);
  void work();
  void send_step();

  Callbacks callbacks_;
  std::mutex mutex_;  // guards sending
  Socket socket_;
  FileDescriptor wake_read_, wake_write_;
  std::thread thread_;
};

// The supervisor's end: accepts one run after the other.
class SupervisorPort {
 public:
  explicit SupervisorPort(bool loopback_only);
  const std::string& address() const { return address_; }  // for kSupervisorVariable

  struct State {
    bool connected = false;       // a run is connected, or was until it ended
    std::string node;             // of rank 0
    std::int64_t step = 0;        // the last step that has begun
    double silent_s = 0;          // since its last message
    double silence_limit_s = 30;  // when it is given up; 0: never
    bool closed = false;          // rank 0 is gone
    std::optional<RunEnd> end;    // the first one that it reported
  };
  // Waits for messages, at most this long.
  const State& poll(std::chrono::milliseconds timeout);
  void ask_to_stop(const std::string& reason);  // this run, or the next one that connects
  void forgive_silence();                       // this process was stopped itself
  void forget_run();                            // before the next one is started

 private:
  void accept();
  void read();

  Listener listener_;
  std::string password_, address_;
  std::string stop_reason_;
  Socket run_;
  State state_;
  std::chrono::steady_clock::time_point heard_ = {};
};

}  // namespace kintsugi
