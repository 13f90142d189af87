#pragma once

#include <sched.h>

#include <algorithm>

namespace kintsugi {

// The cores that this process may use, which may be fewer than the node has: those of its job.
inline int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace kintsugi
