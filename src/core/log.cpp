#include "core/log.h"

#include <poll.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/error.h"

namespace kintsugi {
namespace {

using Listener = std::function<void(LogLevel, std::string_view)>;

// Where messages go. Any thread may log while another one opens a file or redirects the log, so a
// message goes to copies of the pointers: a file or a listener that was replaced meanwhile lives on
// until the message is written.
class Sinks {
 public:
  std::shared_ptr<spdlog::logger> file() const {
    const std::lock_guard lock(mutex_);
    return file_;
  }
  std::shared_ptr<const Listener> listener() const {
    const std::lock_guard lock(mutex_);
    return listener_;
  }
  void set_file(std::shared_ptr<spdlog::logger> file) {
    const std::lock_guard lock(mutex_);
    file_.swap(file);
  }
  void set_listener(Listener listener) {
    auto next = listener ? std::make_shared<const Listener>(std::move(listener)) : nullptr;
    const std::lock_guard lock(mutex_);
    listener_.swap(next);
  }

 private:
  mutable std::mutex mutex_;  // guards both
  std::shared_ptr<spdlog::logger> file_;
  std::shared_ptr<const Listener> listener_;
};

Sinks& sinks() {
  static Sinks all;
  return all;
}

std::atomic<bool>& live_line_shown() {
  static std::atomic<bool> shown = false;
  return shown;
}

std::atomic<bool>& live_lines_allowed() {
  static std::atomic<bool> allowed = true;
  return allowed;
}

std::atomic<int>& first_write_error() {
  static std::atomic<int> reason{0};
  return reason;
}

// Bypasses stdio, so that unwritten text does not stay in a buffer.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      int none = 0;
      if (descriptor == STDOUT_FILENO) first_write_error().compare_exchange_strong(none, errno);
      return;
    }
  }
}

// The length of the UTF-8 character at the beginning of `text`; 0 if it is invalid.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  return length;
}

// C0, DEL and C1 (U+0080 … U+009F), except line ends and tabs.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (first == 0xC2) return static_cast<unsigned char>(character[1]) < 0xA0;
  return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
}

// Errors are always one line.
std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) c == '\n' ? line += "\\n" : line += c;
  return line;
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// The first `columns` characters of a UTF-8 text, cut between fields (two spaces) if it is longer.
std::string_view clipped(std::string_view text, int columns) {
  std::size_t end = 0;
  for (int count = 0; end < text.size(); ++end) {
    const bool starts_character = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (starts_character && count++ == columns) break;
  }
  if (end == text.size()) return text;
  const std::size_t gap = text.substr(0, end).rfind("  ");
  return text.substr(0, gap == std::string_view::npos ? end : gap);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    if (length == 0 || is_control(character))
      for (const char byte : character)
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    else
      result += character;
    text.remove_prefix(character.size());
  }
  return result;
}

int lost_output() { return first_write_error(); }

void redirect_log(std::function<void(LogLevel, std::string_view)> function) {
  sinks().set_listener(std::move(function));
}

void open_log_file(const std::filesystem::path& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    auto logger = std::make_shared<spdlog::logger>("file", sink);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S%z %l %v");
    logger->flush_on(spdlog::level::info);
    logger->set_error_handler([path, warned = false](const std::string& reason) mutable {
      if (std::exchange(warned, true)) return;
      write_all(STDERR_FILENO,
                printable(fmt::format("warning: cannot write {}: {}\n", path.string(), reason)));
    });
    sinks().set_file(std::move(logger));
  } catch (const spdlog::spdlog_ex& error) {
    failure("cannot open {}: {}", path.string(), error.what());
  }
}

void close_log_file() { sinks().set_file(nullptr); }

void log_to_file(std::string_view message) {
  if (const auto logger = sinks().file()) logger->info("{}", printable(message));
}

void log_message(LogLevel level, std::string_view message) {
  if (const auto listener = sinks().listener()) return (*listener)(level, message);
  std::string text = printable(message);
  if (level == LogLevel::Error) text = on_one_line(text);
  std::fflush(stdout);
  if (live_line_shown().exchange(false)) write_all(STDOUT_FILENO, "\r\x1b[K");
  const char* prefix = level == LogLevel::Warning ? "warning: "
                       : level == LogLevel::Error ? "error: "
                                                  : "";
  write_all(level == LogLevel::Info ? STDOUT_FILENO : STDERR_FILENO, prefix + text + "\n");
  if (const auto logger = sinks().file()) {
    const auto severity = level == LogLevel::Error     ? spdlog::level::err
                          : level == LogLevel::Warning ? spdlog::level::warn
                                                       : spdlog::level::info;
    logger->log(severity, "{}", text);
  }
}

bool terminal_is_live() {
  const char* terminal = std::getenv("TERM");  // "dumb" terminals cannot overwrite a line
  return live_lines_allowed() && sinks().listener() == nullptr && isatty(STDOUT_FILENO) == 1 &&
         terminal != nullptr && std::string_view(terminal) != "" &&
         std::string_view(terminal) != "dumb";
}

void disable_live_line() { live_lines_allowed() = false; }

void show_live_line(std::string_view line) {
  if (!terminal_is_live()) return;
  std::fflush(stdout);
  write_all(STDOUT_FILENO,
            fmt::format("\r\x1b[K{}", clipped(printable(line), terminal_columns() - 1)));
  live_line_shown() = true;
}

}  // namespace kintsugi
