#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace kintsugi {

// An error that the user can fix: a file, a key, a shape, an option. Exit code 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file is missing, or is not as it was written.
class DamagedFile : public UserError {
 public:
  DamagedFile(std::string file, const std::string& text)
      : UserError(text), file_(std::move(file)) {}
  const std::string& file() const { return file_; }

 private:
  std::string file_;
};

// An error that valid input did not cause: a full disk, a broken invariant. Exit code 1.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void failure(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void damaged_file(std::string file, fmt::format_string<Args...> format,
                               Args&&... args) {
  throw DamagedFile(std::move(file), fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {

[[noreturn]] inline void check_failed(const char* expression, std::string_view file, int line,
                                      const std::string& message) {
  if (const auto at = file.find("/src/"); at != std::string_view::npos) file.remove_prefix(at + 1);
  throw Failure(fmt::format("{} [{} is false at {}:{}]", message, expression, file, line));
}

}  // namespace detail

// What the exit code of the program means, for job scripts and the supervisor.
// docs/configuration.md has the table for users.
namespace exit_code {

inline constexpr int kFinished = 0;
inline constexpr int kFailure = 1;     // of the machine: another attempt may succeed
inline constexpr int kMistake = 2;     // of the user: another attempt fails in the same way
inline constexpr int kDiverged = 3;    // the training itself went wrong
inline constexpr int kNoProgress = 4;  // the supervisor gave up after attempts without a new step
inline constexpr int kStopped = 75;    // on request, with a saved state; EX_TEMPFAIL of sysexits.h

}  // namespace exit_code
}  // namespace kintsugi

// Checks an internal invariant. The message says what was expected, with the actual values.
#define KINTSUGI_CHECK(condition, ...)                                 \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::kintsugi::detail::check_failed(#condition, __FILE__, __LINE__, \
                                       ::fmt::format(__VA_ARGS__));    \
  } while (false)
