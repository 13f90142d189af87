#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"

namespace kintsugi {

// During its lifetime, log messages of all threads are stored instead of printed.
class CapturedLog {
 public:
  CapturedLog() {
    redirect_log([this](LogLevel level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      messages_.emplace_back(level, message);
    });
  }
  ~CapturedLog() { redirect_log({}); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  std::string text() const {
    std::string all;
    for (const auto& [level, message] : messages_) all += message + "\n";
    return all;
  }
  std::string warnings() const {
    std::string all;
    for (const auto& [level, message] : messages_)
      if (level == LogLevel::Warning) all += message + "\n";
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> messages_;
};

}  // namespace kintsugi
