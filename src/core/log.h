#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace kintsugi {

// Notes, warnings and errors go to standard error, so that standard output can hold a result.
enum class LogLevel { Info, Note, Warning, Error };

// Writes a message to the terminal and, after open_log_file, with the time to log.txt. It may have
// several lines unless it is an error. Does not throw: a failed write must not end a run.
void log_message(LogLevel level, std::string_view message);
// Writes to log.txt only, for text that the live line shows on the terminal.
void log_to_file(std::string_view message);
// Sends the messages of this process to `listener` instead of the terminal and log.txt. For ranks
// other than 0.
void redirect_log(std::function<void(LogLevel, std::string_view)> listener);
void open_log_file(const std::filesystem::path& path);
void close_log_file();

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::Info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_note(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::Note, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::Warning, fmt::format(format, std::forward<Args>(args)...));
}

// errno of the first failed write to standard output; 0 if none failed.
int lost_output();

// Escapes control characters (except line ends and tabs) and invalid UTF-8 as \xNN, because names
// and values in messages are untrusted and could contain terminal control sequences.
std::string printable(std::string_view text);

// Shows a line that the next one overwrites. Does nothing unless standard output is a terminal.
void show_live_line(std::string_view line);
bool terminal_is_live();
// Only plain lines from now on: launchers may give a rank a terminal that nobody reads.
void disable_live_line();

}  // namespace kintsugi
