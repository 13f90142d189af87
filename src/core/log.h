#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace kintsugi {

enum class LogLevel { Info, Warning, Error };

// One message to the terminal and, after open_log_file, to log.txt with the time. May hold several
// lines.
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
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::Warning, fmt::format(format, std::forward<Args>(args)...));
}

// A line that is overwritten by the next one, at the bottom of a terminal; nothing when standard
// output is not one.
void show_live_line(std::string_view line);
bool terminal_is_live();
// Plain lines from now on: launchers give a rank a terminal that nobody looks at.
void disable_live_line();

}  // namespace kintsugi
