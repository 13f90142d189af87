#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace kintsugi {

// While it exists, Ctrl-C (SIGINT) is noted and does not end the process. A second one before the
// first was taken ends it as usual.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool pending() const;
  bool take();  // whether one was noted since the last call
};

// Reads standard input line by line. Unlike std::getline it notices a signal while it waits.
class LineInput {
 public:
  enum class Result : std::uint8_t { Line, End, Interrupted };
  Result next(std::string& line);                   // without its line end
  std::uint64_t number() const { return number_; }  // of the last line, from 1

 private:
  std::string buffer_;
  std::uint64_t number_ = 0;
  bool ended_ = false;
};

}  // namespace kintsugi
