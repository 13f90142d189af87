#pragma once

#include <cstddef>
#include <cstdint>

// What the stand-in for HIP's runtime tells the one for rocprofiler-sdk. The real ones exchange the
// tables of all their functions.
namespace kintsugi::stand_in {

struct ProfiledWork {
  bool is_copy = false;
  const void* function = nullptr;  // a kernel of the program
  const char* name = nullptr;      // another kernel
  std::uint32_t blocks[3] = {1, 1, 1}, threads[3] = {1, 1, 1};
  int direction = 0;  // of a copy, as rocprofiler-sdk counts
  std::size_t bytes = 0;
  const void* queue = nullptr;
};

struct ProfilerTable {
  // Called by the thread that asks for the work; nullptr: it is not recorded.
  void* (*queued)(const ProfiledWork& work) = nullptr;
  // When it is done, by another thread; times of the steady clock.
  void (*done)(void* record, std::uint64_t begin_ns, std::uint64_t end_ns) = nullptr;
};

}  // namespace kintsugi::stand_in
