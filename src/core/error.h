#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace kintsugi {

// Something the user can put right: a file, a key, a shape, a flag. Exit code 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Something that went wrong while we were right to try: a full disk, a broken invariant. Exit
// code 1.
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

namespace detail {

[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& message);

}  // namespace detail
}  // namespace kintsugi

// An invariant of the program itself. The message says what was expected, with the values at hand.
#define KINTSUGI_CHECK(condition, ...)                                 \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::kintsugi::detail::check_failed(#condition, __FILE__, __LINE__, \
                                       ::fmt::format(__VA_ARGS__));    \
  } while (false)
