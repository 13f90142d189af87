#include "launch/child_session.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "core/error.h"

extern char** environ;

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kGrace = std::chrono::seconds(5);
constexpr auto kPollInterval = std::chrono::milliseconds(20);

// The running processes of a session, from /proc/PID/stat: "PID (name) state ppid pgrp sid".
std::vector<pid_t> members_of(pid_t session) {
  std::vector<pid_t> members;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    const std::size_t end = text.rfind(')');  // a name may contain spaces and brackets
    char state = 0;
    int parent = 0, group = 0, sid = 0;
    if (end == std::string::npos ||
        std::sscanf(text.c_str() + end + 1, " %c %d %d %d", &state, &parent, &group, &sid) != 4)
      continue;
    if (sid == session && state != 'Z' && state != 'X') members.push_back(std::stoi(name));
  }
  return members;
}

// How a child process begins: with empty standard input, and with the signals that this program
// ignores as they were.
class Spawn {
 public:
  // `group`: POSIX_SPAWN_SETSID or POSIX_SPAWN_SETPGROUP.
  Spawn(short group, const sigset_t& mask) {
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_init(&files_);
    sigset_t defaults;
    sigemptyset(&defaults);
    for (const int ignored : {SIGPIPE, SIGXFSZ}) sigaddset(&defaults, ignored);
    posix_spawnattr_setsigmask(&attributes_, &mask);
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
    posix_spawnattr_setflags(
        &attributes_, static_cast<short>(group | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
    posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  ~Spawn() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  void write_outputs_to(const fs::path& log) {
    posix_spawn_file_actions_addopen(&files_, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&files_, STDOUT_FILENO, STDERR_FILENO);
  }
  // The program is looked up in PATH. Returns 0 or the error.
  int run(const std::vector<std::string>& command, char** environment, pid_t& process) const {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    return posix_spawnp(&process, words[0], &files_, &attributes_, words.data(), environment);
  }

 private:
  posix_spawnattr_t attributes_;
  posix_spawn_file_actions_t files_;
};

// That of this process, with `variables`.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const auto& [name, value] : variables) added_.push_back(name + "=" + value);
    for (char** entry = environ; *entry != nullptr; ++entry)
      if (std::none_of(variables.begin(), variables.end(), [&](const auto& variable) {
            return std::string_view(*entry).starts_with(variable.first + "=");
          }))
        entries_.push_back(*entry);
    for (std::string& entry : added_) entries_.push_back(entry.data());
    entries_.push_back(nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  char** get() const { return const_cast<char**>(entries_.data()); }

 private:
  std::vector<std::string> added_;
  std::vector<char*> entries_;
};

}  // namespace

pid_t start_session(const std::vector<std::string>& command, const fs::path& log,
                    const Variables& variables) {
  sigset_t none;
  sigemptyset(&none);
  Spawn spawn(POSIX_SPAWN_SETSID, none);
  if (!log.empty()) spawn.write_outputs_to(log);
  pid_t leader = -1;
  const Environment environment(variables);
  if (const int error = spawn.run(command, environment.get(), leader); error != 0)
    failure("cannot start {}{}: {}", command[0],
            log.empty() ? "" : fmt::format(" with its output in {}", log.string()),
            std::strerror(error));
  return leader;
}

bool session_has_processes(pid_t leader) { return !members_of(leader).empty(); }

void kill_session(pid_t leader) {
  for (const pid_t process : members_of(leader)) kill(process, SIGKILL);
}

bool session_is_over(pid_t leader) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(leader), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == leader;
}

void ask_session_to_end(pid_t leader) { kill(-leader, SIGTERM); }

int end_session(pid_t leader, bool asked) {
  // Wait for all members: a shell dies at once, while the launcher it started still ends its ranks.
  if (!session_is_over(leader)) {
    if (!asked) ask_session_to_end(leader);
    const auto end = Clock::now() + kGrace;
    while (!members_of(leader).empty() && Clock::now() < end)
      std::this_thread::sleep_for(kPollInterval);
  }
  // The leader is reaped last: until then its process id cannot be reused.
  const auto end = Clock::now() + kGrace;
  for (auto left = members_of(leader); !left.empty(); left = members_of(leader)) {
    if (Clock::now() > end)  // perhaps blocked in a driver or file system call
      failure("process {} cannot be killed", left.front());
    for (const pid_t process : left) kill(process, SIGKILL);
    std::this_thread::sleep_for(kPollInterval);
  }
  int status = 0;
  waitpid(leader, &status, 0);
  return status;
}

fs::path mpi_session_folder(const std::string& name) {
  const char* given = std::getenv(kMpiSessionVariable);
  return fs::path(given ? given : fs::temp_directory_path()) /
         fmt::format("kintsugi-{}-{}", getpid(), name);
}

// Signals wait in the mask while this object exists, and are forwarded.
struct Scripts::Blocked {
  sigset_t forwarded, before;
  Blocked() {
    sigemptyset(&forwarded);
    for (const int signal : {SIGTERM, SIGUSR1, SIGHUP, SIGINT}) sigaddset(&forwarded, signal);
    pthread_sigmask(SIG_BLOCK, &forwarded, &before);
  }
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
};

Scripts::Scripts() = default;
Scripts::~Scripts() = default;

pid_t Scripts::start(const fs::path& script, const Variables& variables) {
  auto signals = signals_ ? std::move(signals_) : std::make_unique<Blocked>();
  const Environment environment(variables);
  pid_t child = -1;
  const int error = Spawn(POSIX_SPAWN_SETPGROUP, signals->before)
                        .run({"bash", script.string()}, environment.get(), child);
  if (!running_.empty() || error == 0) signals_ = std::move(signals);
  if (error == ENOENT) user_error("bash is not installed on this machine");
  if (error != 0) failure("cannot start bash: {}", std::strerror(error));
  running_.push_back(child);
  return child;
}

std::optional<Scripts::Ended> Scripts::poll() {
  for (const pid_t child : running_) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended < 0 && errno != EINTR) failure("lost process {}: {}", child, std::strerror(errno));
    if (ended != child) continue;
    std::erase(running_, child);
    if (running_.empty()) signals_.reset();
    return Ended{child, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
  }
  const timespec wait{0, 50'000'000};
  if (!signals_)
    nanosleep(&wait, nullptr);
  else if (const int signal = sigtimedwait(&signals_->forwarded, nullptr, &wait); signal > 0)
    for (const pid_t child : running_) kill(-child, signal);
  return {};
}

int run_script(const fs::path& script) {
  Scripts scripts;
  scripts.start(script);
  for (;;)
    if (const auto ended = scripts.poll()) return ended->code;
}

}  // namespace kintsugi
