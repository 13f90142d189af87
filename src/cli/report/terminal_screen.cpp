#include "cli/report/terminal_screen.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

#include "core/error.h"

namespace kintsugi {
namespace {

// Second screen, no cursor, no wrapping; and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

constexpr std::array kNotedSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP};
constexpr std::array kErrorSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// Read by signal handlers, so it is plain memory.
struct ScreenState {
  volatile sig_atomic_t ended = 0, resized = 0, suspended = 0;
  volatile sig_atomic_t shown = 0, has_modes = 0;
  termios modes = {};  // of the terminal before
  // A handler writes to this pipe, which wait() reads: any thread of the process may get a signal,
  // and one that arrives before the wait must end it too.
  std::array<int, 2> pipe = {-1, -1};
  std::array<struct sigaction, 64> actions = {};
};
ScreenState screen;

// The three functions below are async-signal-safe.
bool write_whole(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 1000) <= 0) return false;
    } else if (written < 0 && errno != EINTR) {
      return false;
    } else if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  return true;
}

void leave_screen() {
  if (screen.shown == 0) return;
  screen.shown = 0;
  write_whole(kLeave);
  if (screen.has_modes != 0) ::tcsetattr(STDIN_FILENO, TCSANOW, &screen.modes);
}

void on_error_signal(int signal) {
  leave_screen();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void enter_screen() {
  if (screen.has_modes != 0) {
    termios modes = screen.modes;
    modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    modes.c_cc[VMIN] = 0;
    modes.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &modes);
  }
  screen.shown = 1;
  write_whole(kEnter);
}

void wake() {
  const int before = errno;
  // If the pipe is full, the wait ends anyway.
  if (::write(screen.pipe[1], "", 1) < 0) errno = before;
}
void on_signal(int signal) {
  (signal == SIGWINCH ? screen.resized : signal == SIGTSTP ? screen.suspended : screen.ended) = 1;
  wake();
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, &screen.actions[static_cast<std::size_t>(signal)]);
}
void restore(int signal) {
  ::sigaction(signal, &screen.actions[static_cast<std::size_t>(signal)], nullptr);
}

// The process stops here until it is continued.
void suspend() {
  leave_screen();
  ::raise(SIGSTOP);
  enter_screen();
}

struct KeyName {
  std::string_view bytes;
  TerminalScreen::Event event;
};
constexpr std::array kKeys = {
    KeyName{"\x1b[A", TerminalScreen::Event::Previous},
    KeyName{"\x1b[D", TerminalScreen::Event::Previous},
    KeyName{"\x1b[Z", TerminalScreen::Event::Previous},  // shift and tab
    KeyName{"\x1bOA", TerminalScreen::Event::Previous},
    KeyName{"\x1bOD", TerminalScreen::Event::Previous},
    KeyName{"\x1b[B", TerminalScreen::Event::Next},
    KeyName{"\x1b[C", TerminalScreen::Event::Next},
    KeyName{"\x1bOB", TerminalScreen::Event::Next},
    KeyName{"\x1bOC", TerminalScreen::Event::Next},
    KeyName{"\t", TerminalScreen::Event::Next},
    KeyName{"l", TerminalScreen::Event::Logarithmic},
    KeyName{"q", TerminalScreen::Event::Quit},
};

int environment_size(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  const int value = text == nullptr ? 0 : std::atoi(text);
  return value > 0 ? std::min(value, 1000) : otherwise;
}

}  // namespace

TerminalSize terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0)
    return {std::min<int>(size.ws_col, 1000), std::min<int>(size.ws_row, 1000)};
  return {environment_size("COLUMNS", 80), environment_size("LINES", 24)};
}

bool TerminalScreen::is_available() {
  const char* const kind = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

TerminalScreen::TerminalScreen() {
  reads_keys_ = ::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &screen.modes) == 0;
  screen.has_modes = reads_keys_ ? 1 : 0;
  screen.ended = 0;
  screen.resized = 0;
  screen.suspended = 0;
  if (::pipe2(screen.pipe.data(), O_NONBLOCK | O_CLOEXEC) != 0)
    user_error("the terminal cannot be watched: {}", std::strerror(errno));
  for (const int signal : kNotedSignals) handle(signal, on_signal);
  for (const int signal : kErrorSignals) handle(signal, on_error_signal);
  enter_screen();
}

TerminalScreen::~TerminalScreen() {
  leave_screen();
  for (const int signal : kErrorSignals) restore(signal);
  for (const int signal : kNotedSignals) restore(signal);
  for (const int end : screen.pipe) ::close(end);
}

void TerminalScreen::show(const std::vector<std::string>& lines) {
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i)
    text += lines[i] + "\x1b[K" + (i + 1 < lines.size() ? "\r\n" : "");
  if (!write_whole(text + "\x1b[J")) screen.ended = 1;
}

TerminalScreen::Event TerminalScreen::event_of_signals() {
  if (screen.ended != 0) return Event::Ended;
  if (screen.suspended != 0) {
    screen.suspended = 0;
    suspend();
    return Event::Resized;
  }
  if (screen.resized != 0) {
    screen.resized = 0;
    return Event::Resized;
  }
  return Event::Timeout;
}

// The next known key; other bytes are dropped.
TerminalScreen::Event TerminalScreen::event_of_key() {
  while (!keys_.empty()) {
    for (const KeyName& key : kKeys)
      if (keys_.starts_with(key.bytes)) {
        keys_.erase(0, key.bytes.size());
        return key.event;
      }
    keys_.erase(0, 1);
  }
  return Event::Timeout;
}

TerminalScreen::Event TerminalScreen::wait(double seconds) {
  const auto time_s = [] {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double end_s = time_s() + seconds;
  while (true) {
    if (const Event event = event_of_key(); event != Event::Timeout) return event;
    if (const Event event = event_of_signals(); event != Event::Timeout) return event;
    const double left_s = end_s - time_s();
    if (left_s <= 0) return Event::Timeout;
    std::array<pollfd, 2> reads = {
        {{.fd = screen.pipe[0], .events = POLLIN, .revents = 0},
         {.fd = reads_keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}}};
    const int left_ms = static_cast<int>(std::ceil(1e3 * std::min(left_s, 1e6)));
    if (::poll(reads.data(), reads.size(), left_ms) <= 0) continue;
    std::array<char, 64> some;
    if (reads[0].revents != 0)
      while (::read(screen.pipe[0], some.data(), some.size()) > 0) {
      }
    if (reads[1].revents == 0) continue;
    const ssize_t bytes = ::read(STDIN_FILENO, some.data(), some.size());
    if (bytes > 0) keys_.append(some.data(), static_cast<std::size_t>(bytes));
    if (bytes <= 0 && (reads[1].revents & (POLLHUP | POLLERR)) != 0) reads_keys_ = false;
  }
}

}  // namespace kintsugi
