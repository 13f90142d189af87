#pragma once

#include <cstdint>

namespace kintsugi {

enum class Collective : std::uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  Broadcast,
  Send,
  Receive,
  Barrier
};
inline constexpr int kCollectives = 7;

const char* to_string(Collective kind);  // "all_reduce", … as the functions are called

// What one rank of `size` must send at least in a ring, of `bytes` in all: the whole tensor of an
// all_reduce, `full` of the others. The bound of any algorithm for reductions and gathers.
double ring_bytes(Collective kind, double bytes, int size);

}  // namespace kintsugi
