#include "cli/model/chat_input.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace kintsugi {
namespace {

constexpr int kLookEvery_ms = 50;

std::atomic<bool> interrupt_noted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void note_interrupt(int signal) {
  if (!interrupt_noted.exchange(true)) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void handle_interrupts(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // a write of the answer is not disturbed
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupt_noted = false;
  handle_interrupts(note_interrupt);
}
InterruptGuard::~InterruptGuard() { handle_interrupts(SIG_DFL); }
bool InterruptGuard::pending() const { return interrupt_noted; }
bool InterruptGuard::take() { return interrupt_noted.exchange(false); }

LineInput::Result LineInput::next(std::string& line) {
  std::size_t end = 0;
  while ((end = buffer_.find('\n')) == std::string::npos && !ended_) {
    // A signal may arrive before poll() or in another thread, so it is looked for now and then.
    pollfd ready{STDIN_FILENO, POLLIN, 0};
    if (::poll(&ready, 1, kLookEvery_ms) <= 0) {
      if (interrupt_noted) return Result::Interrupted;
      continue;
    }
    std::array<char, 65536> some;
    const ssize_t bytes = ::read(STDIN_FILENO, some.data(), some.size());
    if (bytes < 0) user_error("cannot read standard input: {}", std::strerror(errno));
    ended_ = bytes == 0;
    buffer_.append(some.data(), static_cast<std::size_t>(bytes));
  }
  if (buffer_.empty()) return Result::End;
  line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) line.pop_back();
  ++number_;
  return Result::Line;
}

}  // namespace kintsugi
