#include "core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "core/error.h"

namespace kintsugi {
namespace {

std::shared_ptr<spdlog::logger>& file_logger() {
  static std::shared_ptr<spdlog::logger> logger;
  return logger;
}

bool& live_line_shown() {
  static bool shown = false;
  return shown;
}

std::function<void(LogLevel, std::string_view)>& listener() {
  static std::function<void(LogLevel, std::string_view)> function;
  return function;
}

bool& live_lines_allowed() {
  static bool allowed = true;
  return allowed;
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

void redirect_log(std::function<void(LogLevel, std::string_view)> function) {
  listener() = std::move(function);
}

void open_log_file(const std::filesystem::path& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    file_logger() = std::make_shared<spdlog::logger>("file", sink);
    file_logger()->set_pattern("%Y-%m-%dT%H:%M:%S%z %l %v");
    file_logger()->flush_on(spdlog::level::info);
  } catch (const spdlog::spdlog_ex& error) {
    failure("cannot open {}: {}", path.string(), error.what());
  }
}

void close_log_file() { file_logger().reset(); }

void log_to_file(std::string_view message) {
  if (const auto& logger = file_logger()) logger->info("{}", message);
}

void log_message(LogLevel level, std::string_view message) {
  if (listener()) return listener()(level, message);
  if (live_line_shown()) {
    std::fputs("\r\x1b[K", stdout);
    live_line_shown() = false;
  }
  // Errors and warnings leave standard output to what programs read.
  std::FILE* stream = level == LogLevel::Info ? stdout : stderr;
  const char* prefix = level == LogLevel::Info      ? ""
                       : level == LogLevel::Warning ? "warning: "
                                                    : "error: ";
  std::fflush(stdout);
  fmt::print(stream, "{}{}\n", prefix, message);
  std::fflush(stream);
  if (const auto& logger = file_logger()) {
    const auto severity = level == LogLevel::Info      ? spdlog::level::info
                          : level == LogLevel::Warning ? spdlog::level::warn
                                                       : spdlog::level::err;
    logger->log(severity, "{}", message);
  }
}

bool terminal_is_live() {
  return live_lines_allowed() && !listener() && isatty(STDOUT_FILENO) == 1;
}

void disable_live_line() { live_lines_allowed() = false; }

void show_live_line(std::string_view line) {
  if (!terminal_is_live()) return;
  fmt::print("\r\x1b[K{}", clipped(line, terminal_columns() - 1));
  std::fflush(stdout);
  live_line_shown() = true;
}

}  // namespace kintsugi
