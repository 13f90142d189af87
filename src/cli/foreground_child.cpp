#include "cli/foreground_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/log.h"

extern char** environ;

namespace kintsugi {
namespace {

constexpr std::array kForwarded = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Used by the signal handlers.
std::atomic<pid_t> child_process{0};
std::atomic<int> early_signal{0};  // arrived before the command was started
std::atomic<int> wake_up{-1};      // written to when a child process ends

// A signal of the terminal (Ctrl-C) reaches the command without us: it has the same process group.
void forward_signal(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  if (info == nullptr || info->si_code <= 0) {
    if (const pid_t process = child_process; process > 0)
      ::kill(process, signal);
    else
      early_signal = signal;
  }
  errno = saved;
}

void note_end(int) {
  const int saved = errno;
  (void)!::write(wake_up, "", 1);
  errno = saved;
}

void handle_signals() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  action.sa_sigaction = forward_signal;
  for (const int signal : kForwarded) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);  // as with nohup
  }
  struct sigaction ended {};
  ended.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  ended.sa_handler = note_end;
  ::sigaction(SIGCHLD, &ended, nullptr);
}

// Starts the command with the signals that this program ignores as they were.
int spawn(const std::vector<std::string>& command, pid_t& process) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int ignored : {SIGPIPE, SIGXFSZ}) sigaddset(&defaults, ignored);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const int error =
      ::posix_spawnp(&process, words.front(), nullptr, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

ForegroundChild::ForegroundChild(const std::vector<std::string>& command) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    failure("cannot open a pipe: {}", std::strerror(errno));
  wake_fd_ = ends[0];  // both ends stay open until the program ends: a handler may still write
  wake_up = ends[1];
  early_signal = 0;
  handle_signals();
  if (const int error = spawn(command, process_); error != 0) {
    process_ = -1;
    code_ = error == ENOENT ? 127 : 126;  // as shells do
    log_message(LogLevel::Error,
                fmt::format("cannot run '{}': {}", command.front(),
                            error == ENOENT ? "command not found" : std::strerror(error)));
    return;
  }
  child_process = process_;
  if (const int signal = early_signal.exchange(0); signal != 0) ::kill(process_, signal);
}

ForegroundChild::~ForegroundChild() {
  while (!wait(1)) continue;
}

bool ForegroundChild::wait(double timeout_s) {
  if (process_ < 0) return true;
  int status = 0;
  for (const bool last : {false, true}) {
    const pid_t ended = ::waitpid(process_, &status, WNOHANG);
    if (ended == process_) break;
    if (ended < 0 && errno != EINTR) {
      status = 0;
      break;
    }
    if (last) return false;
    pollfd event{wake_fd_, POLLIN, 0};
    ::poll(&event, 1, static_cast<int>(std::clamp(std::ceil(timeout_s * 1e3), 0.0, 1e6)));
    std::array<char, 16> bytes;
    while (::read(wake_fd_, bytes.data(), bytes.size()) > 0) continue;
  }
  child_process = 0;
  process_ = -1;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

}  // namespace kintsugi
