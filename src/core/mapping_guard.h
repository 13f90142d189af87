#pragma once

#include <cstddef>

namespace kintsugi {

// A mapped file that another process shortens, or whose disk fails, answers the next read with
// SIGBUS. Inside a guarded mapping that signal is caught: the rest of the mapping reads as zeros
// from then on, and cut() says so. Whoever copies out of a mapping asks afterwards.
class MappingGuard {
 public:
  MappingGuard() = default;  // of nothing
  MappingGuard(const void* begin, std::size_t bytes);
  ~MappingGuard();  // before the mapping goes
  MappingGuard(MappingGuard&& other) noexcept;
  MappingGuard& operator=(MappingGuard&& other) noexcept;
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  bool cut() const;

 private:
  int slot_ = -1;
};

}  // namespace kintsugi
