#include "comm/supervisor_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <sstream>
#include <vector>

#include "comm/launch_environment.h"
#include "core/error.h"
#include "core/log.h"

namespace kintsugi {
namespace {

constexpr char kLinkHello = 'H', kLinkStep = 'B', kLinkEnded = 'E', kLinkStop = 'S';
constexpr int kBeatMs = 1000, kConnectMs = 3000;
constexpr int kStartMs = 200;  // until the first step, so that the start-up time is known

std::string rest_of(std::istringstream& words) {
  words.get();
  return {std::istreambuf_iterator<char>(words), {}};
}

}  // namespace

// ---- rank 0

std::unique_ptr<SupervisorLink> SupervisorLink::connect(const char* address, Callbacks callbacks) {
  if (address == nullptr || *address == '\0') return {};
  std::istringstream words(address);
  std::string password;
  int port = 0;
  words >> password >> port;
  for (std::string interface; words >> interface;) {
    Socket socket = connect_to(interface, port, kConnectMs);
    if (!socket || !socket.send(kLinkHello, password + " " + node_name())) continue;
    const auto answer = socket.receive(kConnectMs);
    if (answer && answer->type == kLinkHello && answer->text == password)
      return std::unique_ptr<SupervisorLink>(
          new SupervisorLink(std::move(socket), std::move(callbacks)));
  }
  log_warning("the supervisor of this run ({}) does not answer: the run goes on without it",
              kSupervisorVariable);
  return {};
}

SupervisorLink::SupervisorLink(Socket socket, Callbacks callbacks)
    : callbacks_(std::move(callbacks)), socket_(std::move(socket)) {
  int pipe[2] = {-1, -1};
  if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) failure("cannot create a pipe");
  wake_read_ = FileDescriptor(pipe[0]);
  wake_write_ = FileDescriptor(pipe[1]);
  thread_ = std::thread([this] { work(); });
}

SupervisorLink::~SupervisorLink() {
  (void)!::write(wake_write_, "", 1);
  thread_.join();
}

void SupervisorLink::send_step() {
  const std::lock_guard lock(mutex_);
  socket_.send(kLinkStep, fmt::format("{} {}", callbacks_.step(), callbacks_.silence_s()));
}

void SupervisorLink::ended(const RunEnd& end) {
  send_step();
  const std::lock_guard lock(mutex_);
  socket_.send(kLinkEnded, fmt::format("{} {} {}", end.exit_code, static_cast<int>(end.stop),
                                       to_message(end.failure)));
}

void SupervisorLink::work() {
  for (;;) {
    pollfd entries[2] = {{wake_read_, POLLIN, 0}, {socket_.descriptor(), POLLIN, 0}};
    const int ready = ::poll(entries, 2, callbacks_.step() == 0 ? kStartMs : kBeatMs);
    if (entries[0].revents != 0) return;
    if (ready > 0 && entries[1].revents != 0) {
      const bool alive = socket_.read();
      while (const auto frame = socket_.next())
        if (frame->type == kLinkStop) callbacks_.stop(frame->text);
      if (!alive) return callbacks_.stop("the supervisor was lost");
    }
    send_step();
  }
}

// ---- the supervisor

SupervisorPort::SupervisorPort(bool loopback_only)
    : listener_(loopback_only), password_(make_password()) {
  address_ = fmt::format("{} {} 127.0.0.1", password_, listener_.port());
  if (loopback_only) return;
  for (const std::string& interface : host_addresses()) address_ += " " + interface;
}

void SupervisorPort::accept() {
  Socket client = listener_.accept();
  if (!client) return;
  const auto hello = client.receive(kConnectMs);
  if (!hello || hello->type != kLinkHello || !hello->text.starts_with(password_ + " ")) return;
  if (!client.send(kLinkHello, password_)) return;
  run_ = std::move(client);
  state_ = {};
  state_.connected = true;
  state_.node = hello->text.substr(password_.size() + 1);
  heard_ = std::chrono::steady_clock::now();
  if (!stop_reason_.empty()) run_.send(kLinkStop, stop_reason_);
}

void SupervisorPort::read() {
  const bool alive = run_.read();
  while (const auto frame = run_.next()) {
    heard_ = std::chrono::steady_clock::now();  // the end of its process is no sign of life
    std::istringstream words(frame->text);
    if (frame->type == kLinkStep) words >> state_.step >> state_.silence_limit_s;
    if (frame->type != kLinkEnded || state_.end) continue;
    RunEnd end;
    int stop = 0;
    words >> end.exit_code >> stop;
    end.stop = static_cast<StopCause>(stop);
    end.failure = failure_from_message(rest_of(words));
    state_.end = std::move(end);
  }
  if (alive) return;
  run_.close();
  state_.closed = true;
}

const SupervisorPort::State& SupervisorPort::poll(std::chrono::milliseconds timeout) {
  std::vector<pollfd> entries = {{listener_.descriptor(), POLLIN, 0}};
  if (run_) entries.push_back({run_.descriptor(), POLLIN, 0});
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout.count())) > 0) {
    if (entries.size() > 1 && entries[1].revents != 0) read();
    if (entries[0].revents != 0) accept();
  }
  state_.silent_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - heard_).count();
  return state_;
}

void SupervisorPort::forgive_silence() { heard_ = std::chrono::steady_clock::now(); }

void SupervisorPort::ask_to_stop(const std::string& reason) {
  stop_reason_ = reason;
  if (run_) run_.send(kLinkStop, reason);
}

void SupervisorPort::forget_run() {
  run_.close();
  state_ = {};
}

}  // namespace kintsugi
