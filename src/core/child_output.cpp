#include "core/child_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/error.h"
#include "core/file.h"

extern char** environ;

namespace kintsugi {
namespace {

using OutputClock = std::chrono::steady_clock;

constexpr std::size_t kMostOutput = 16 << 20;

struct Pipe {
  FileDescriptor read, write;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) failure("cannot make a pipe: {}", std::strerror(errno));
    read = FileDescriptor(ends[0]);
    write = FileDescriptor(ends[1]);
  }
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Standard input as a file in memory: a program that does not read it blocks nobody.
FileDescriptor input_file(std::string_view text) {
  FileDescriptor file(text.empty() ? ::open("/dev/null", O_RDONLY | O_CLOEXEC)
                                   : ::memfd_create("input", MFD_CLOEXEC));
  if (file < 0) failure("cannot make the input of a program: {}", std::strerror(errno));
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written <= 0) break;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  ::lseek(file, 0, SEEK_SET);
  return file;
}

std::vector<std::string> environment_for(const ChildOptions& options) {
  const std::vector<std::string>& prefixes = options.without;
  std::vector<std::string> kept = options.with;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string text = *one;
    if (std::ranges::none_of(prefixes,
                             [&](const std::string& prefix) { return text.starts_with(prefix); }))
      kept.push_back(text);
  }
  return kept;
}

// In a process group of its own, with the default signals.
int spawn(const std::vector<std::string>& command, const std::vector<std::string>& environment,
          int input, const Pipe& out, const Pipe& error, pid_t& child) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, error.write, STDERR_FILENO);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int ignored : {SIGPIPE, SIGXFSZ}) sigaddset(&defaults, ignored);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const auto words = pointers(command), variables = pointers(environment);
  const int result =
      posix_spawnp(&child, words[0], &files, &attributes, words.data(), variables.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return result;
}

// Returns false at the end of the output.
bool read_some(int descriptor, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (text.size() < kMostOutput) text.append(buffer.data(), static_cast<std::size_t>(got));
  return got > 0;
}

// Reads both outputs until they are closed. Returns false if that takes too long.
bool read_all(const Pipe& out, const Pipe& error, OutputClock::time_point end,
              ChildOutput& output) {
  bool out_open = true, error_open = true;
  while (out_open || error_open) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - OutputClock::now()).count();
    if (left <= 0) return false;
    std::array<pollfd, 2> files = {pollfd{out_open ? out.read : -1, POLLIN, 0},
                                   pollfd{error_open ? error.read : -1, POLLIN, 0}};
    const int ready =
        ::poll(files.data(), files.size(), static_cast<int>(std::min<std::int64_t>(left, 1000)));
    if (ready < 0 && errno != EINTR) failure("poll: {}", std::strerror(errno));
    if (ready <= 0) continue;
    if (files[0].revents != 0) out_open = read_some(out.read, output.out);
    if (files[1].revents != 0) error_open = read_some(error.read, output.error);
  }
  return true;
}

// A program may close its outputs and go on. Returns false if that takes too long.
bool wait_until(pid_t child, OutputClock::time_point end, int& status) {
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return true;
    if (OutputClock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

ChildOutput run_captured(const std::vector<std::string>& command, const ChildOptions& options) {
  ChildOutput output;
  const FileDescriptor input = input_file(options.input);
  Pipe out, error;
  pid_t child = -1;
  const int refused = spawn(command, environment_for(options), input, out, error, child);
  if (refused == ENOENT) return output;
  if (refused != 0) failure("cannot start {}: {}", command[0], std::strerror(refused));
  output.found = true;
  out.write = FileDescriptor();
  error.write = FileDescriptor();
  const auto end = OutputClock::now() + std::chrono::duration_cast<OutputClock::duration>(
                                            std::chrono::duration<double>(options.timeout_s));
  int status = 0;
  output.timed_out = !read_all(out, error, end, output) || !wait_until(child, end, status);
  if (output.timed_out) {
    kill(-child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

ChildOutput run_captured(const std::vector<std::string>& command, double timeout_s,
                         const std::vector<std::string>& without) {
  return run_captured(command, {.timeout_s = timeout_s, .without = without});
}

std::filesystem::path program_behind(const std::filesystem::path& link) {
  constexpr std::string_view kGone = " (deleted)";  // added by the kernel
  const std::string path = std::filesystem::read_symlink(link).string();
  if (!path.ends_with(kGone) || std::filesystem::exists(path)) return path;
  const std::string replaced = path.substr(0, path.size() - kGone.size());
  if (std::filesystem::exists(replaced)) return replaced;
  user_error("the program {} was removed while it ran: install it again", replaced);
}

std::filesystem::path own_program() { return program_behind("/proc/self/exe"); }

}  // namespace kintsugi
