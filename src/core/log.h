#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace kintsugi {

// Notes go to standard error, as warnings and errors do: standard output then holds a result.
enum class LogLevel { Info, Note, Warning, Error };

// One message to the terminal and, after open_log_file, to log.txt with the time. May hold several
// lines unless it is an error. Never throws: a message that cannot be written must not end a run.
void log_message(LogLevel level, std::string_view message);
// To log.txt alone, for what the live line shows on the terminal.
void log_to_file(std::string_view message);
// Messages of this process go there instead of the terminal and log.txt: a rank that owns neither.
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

// errno of the first message that standard output did not take; 0 while it has taken all.
int lost_output();

// The text with control characters and bytes that are no UTF-8 spelled out as \xNN, line ends and
// tabs excepted: names and values in messages come from anywhere, and a terminal obeys them.
std::string printable(std::string_view text);

// A line that is overwritten by the next one, at the bottom of a terminal; nothing when standard
// output is not one.
void show_live_line(std::string_view line);
bool terminal_is_live();
// Plain lines from now on: launchers give a rank a terminal that nobody looks at.
void disable_live_line();

}  // namespace kintsugi
