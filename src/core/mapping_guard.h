#pragma once

#include <cstddef>

namespace kintsugi {

// If another process truncates a mapped file, or its disk fails, reading the mapping raises SIGBUS.
// In a guarded mapping the signal is caught: the rest of the mapping reads as zeros from then on
// and cut() returns true. Check cut() after each copy out of the mapping.
class MappingGuard {
 public:
  MappingGuard() = default;  // guards nothing
  MappingGuard(const void* begin, std::size_t bytes);
  ~MappingGuard();  // must run before the file is unmapped
  MappingGuard(MappingGuard&& other) noexcept;
  MappingGuard& operator=(MappingGuard&& other) noexcept;
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  bool cut() const;

 private:
  int slot_ = -1;
};

}  // namespace kintsugi
