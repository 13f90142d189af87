#pragma once

#include <chrono>
#include <string>

#include "core/log.h"

namespace kintsugi {

// A live line on a terminal; elsewhere a log line every 30 s.
class ProgressLine {
 public:
  template <class MakeLine>  // std::string(); called when a line is due
  void show(MakeLine&& make_line) {
    const double now = elapsed_s();
    if (now - shown_s_ < (terminal_is_live() ? 0.2 : 30)) return;
    shown_s_ = now;
    if (terminal_is_live())
      show_live_line(make_line());
    else
      log_info("{}", make_line());
  }
  double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double shown_s_ = 0;
};

}  // namespace kintsugi
