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
// The names of the functions.
constexpr const char* to_string(Collective kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                    "all_to_all", "send",           "receive",    "barrier"};
  const auto index = static_cast<unsigned>(kind);  // another rank may have sent it
  return index < kCollectives ? kNames[index] : "?";
}

// Bytes that each of `size` ranks sends in a ring algorithm. `bytes`: the whole tensor of an
// all_reduce, `full` of a reduce_scatter or all_gather, what an all_to_all sends to other ranks.
// For these it is the lower bound of any algorithm.
inline double ring_bytes(Collective kind, double bytes, int size) {
  if (size == 1 || kind == Collective::Receive || kind == Collective::Barrier) return 0;
  const double others = size - 1;
  if (kind == Collective::AllReduce) return 2 * bytes * others / size;
  if (kind == Collective::ReduceScatter || kind == Collective::AllGather)
    return bytes * others / size;
  return bytes;
}

}  // namespace kintsugi
