#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace kintsugi {

// A command that runs with the standard input and outputs of this process, like one that a shell
// starts. Signals that are sent to this process to end it are forwarded to the command. One at a
// time.
class ForegroundChild {
 public:
  // If the command cannot be started, it has ended at once with code 127 (not found) or 126, and
  // an error message is written.
  explicit ForegroundChild(const std::vector<std::string>& command);
  ~ForegroundChild();  // waits for its end
  ForegroundChild(const ForegroundChild&) = delete;
  ForegroundChild& operator=(const ForegroundChild&) = delete;

  // Waits until the command has ended, but not longer than this. Returns whether it has.
  bool wait(double timeout_s);
  int code() const { return code_; }  // after its end; 128 + signal if one killed it

 private:
  pid_t process_ = -1;  // -1: it has ended
  int code_ = -1;
  int wake_fd_ = -1;  // readable when a child process has ended
};

}  // namespace kintsugi
