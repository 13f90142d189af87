#include "launch/run_script.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"

extern char** environ;

namespace kintsugi {
namespace {

constexpr std::array kForwarded = {SIGTERM, SIGUSR1, SIGHUP, SIGINT};

// In a process group of its own: Ctrl-C reaches it only by wait_and_forward.
pid_t start_group(const std::vector<std::string>& command, const sigset_t& mask) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sigset_t defaults;
  sigemptyset(&defaults);
  for (const int ignored : {SIGPIPE, SIGXFSZ}) sigaddset(&defaults, ignored);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setsigmask(&attributes, &mask);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = -1;
  const int error = posix_spawnp(&child, words[0], &files, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error == ENOENT) user_error("{} is not installed on this machine", command[0]);
  if (error != 0) failure("cannot start {}: {}", command[0], std::strerror(error));
  return child;
}

// Calls `forward` with each signal until the child has ended. Returns its exit code.
template <class Forward>
int wait_and_forward(pid_t child, const sigset_t& forwarded, Forward&& forward) {
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended < 0 && errno != EINTR) failure("lost process {}: {}", child, std::strerror(errno));
    const timespec wait{0, 50'000'000};
    if (const int signal = sigtimedwait(&forwarded, nullptr, &wait); signal > 0) forward(signal);
  }
}

// Signals wait in the mask while this object exists, and are forwarded.
struct BlockedSignals {
  sigset_t forwarded, before;
  BlockedSignals() {
    sigemptyset(&forwarded);
    for (const int signal : kForwarded) sigaddset(&forwarded, signal);
    pthread_sigmask(SIG_BLOCK, &forwarded, &before);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
};

}  // namespace

int run_script(const std::filesystem::path& script) {
  const BlockedSignals signals;
  const pid_t child = start_group({"bash", script.string()}, signals.before);
  return wait_and_forward(child, signals.forwarded, [&](int signal) { kill(-child, signal); });
}

}  // namespace kintsugi
