#pragma once

#include <cstdint>

namespace kintsugi {

enum class Collective : std::uint8_t {
  AllReduce,
  ReduceScatter,
  AllGather,
  Broadcast,
  AllToAll,
  Send,
  Receive,
  Barrier
};
inline constexpr int kCollectives = 8;

// Between two ranks of a group; all ranks take part in the others.
inline bool is_message(Collective kind) {
  return kind == Collective::Send || kind == Collective::Receive;
}
const char* to_string(Collective kind);  // "all_reduce", …: the names of the functions

// Bytes that each of `size` ranks sends in a ring algorithm. `bytes`: the whole tensor of an
// all_reduce, `full` of a reduce_scatter or all_gather, what an all_to_all sends to other ranks.
// For these it is the lower bound of any algorithm.
double ring_bytes(Collective kind, double bytes, int size);

}  // namespace kintsugi
