#pragma once

#include <bit>
#include <cstring>
#include <type_traits>

#include "emulator/executor.h"

// Exchange between the lanes of a wave. A width is a power of two: lanes are divided into groups of
// so many, and a lane number counts within its group. As with the masks of NVIDIA's instructions,
// which name all 32 lanes, the whole team of 32 (the wave, for a width of 64) must make the call,
// whatever the width; threads that have returned need not.
namespace kintsugi::emulator {

// CUDA does not promise that a shuffle or a vote orders accesses to memory. true: the race check
// accepts kernels that rely on it; false: it asks for a sync_wave().
inline constexpr bool kShufflesOrderMemory = false;

namespace detail {

constexpr Scope scope_of(int width) { return width <= kTeam ? Scope::Team : Scope::Wave; }

// Each lane gets the value of the lane `source` of the records; a value of bytes 0xff if that lane
// has returned or if there is none (-1).
template <class T>
struct Shuffle {
  T value;
  int source;
  T result;

  static void complete(std::span<void* const> records) {
    for (void* record : records) {
      if (record == nullptr) continue;
      auto& mine = *static_cast<Shuffle*>(record);
      if (mine.source >= 0 && records[mine.source] != nullptr) {
        mine.result = static_cast<Shuffle*>(records[mine.source])->value;
      } else {
        std::memset(static_cast<void*>(&mine.result), 0xff, sizeof(T));
      }
    }
  }
};

// `source` counts within the group of `width`; another number: no lane.
template <class T>
T shuffle_from(const char* name, T value, int source, int width, Where where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  const int lane = static_cast<int>(here().number) % (width <= kTeam ? kTeam : kWave);
  const int source_lane = source >= 0 && source < width ? lane / width * width + source : -1;
  Shuffle<T> record{value, source_lane, value};
  meet({name, scope_of(width), Shuffle<T>::complete, kShufflesOrderMemory}, &record, where);
  return record.result;
}

inline int lane_in(int width) { return static_cast<int>(here().number) % width; }

}  // namespace detail

template <class T>
T shuffle(T value, int source_lane, int width = kTeam, Where where = Where::current()) {
  return detail::shuffle_from("shuffle", value, source_lane, width, where);
}

template <class T>
T shuffle_xor(T value, int mask, int width = kTeam, Where where = Where::current()) {
  return detail::shuffle_from("shuffle_xor", value, detail::lane_in(width) ^ mask, width, where);
}

// The first `delta` lanes of a group keep their own value.
template <class T>
T shuffle_up(T value, int delta, int width = kTeam, Where where = Where::current()) {
  const int lane = detail::lane_in(width);
  return detail::shuffle_from("shuffle_up", value, lane < delta ? lane : lane - delta, width,
                              where);
}

namespace detail {

struct Vote {
  int value;
  int width;
  std::uint64_t result;
};

}  // namespace detail

// Bit i: lane i of the wave called with true. With a width of 32, half a wave of 64 may call alone;
// then the bits of the other half are set, since nobody may rely on them.
inline std::uint64_t ballot(bool value, int width = kWave, Where where = Where::current()) {
  detail::Vote record{value, width, 0};
  constexpr auto complete = [](std::span<void* const> records) {
    std::uint64_t bits = 0;
    for (std::size_t lane = 0; lane < records.size(); ++lane)
      if (records[lane] != nullptr && static_cast<detail::Vote*>(records[lane])->value != 0)
        bits |= std::uint64_t{1} << lane;
    for (void* record : records)
      if (record != nullptr) static_cast<detail::Vote*>(record)->result = bits;
  };
  meet({"ballot", detail::scope_of(width), complete, kShufflesOrderMemory}, &record, where);
  if (width == kWave) return record.result;
  const bool upper = here().number % kWave >= kTeam;
  return upper ? record.result << 32 | 0xffffffffu : record.result | ~std::uint64_t{0xffffffffu};
}

// Bit i: lane i of the group called with the same value.
inline std::uint64_t match_any(int value, int width = kTeam, Where where = Where::current()) {
  detail::Vote record{value, width, 0};
  constexpr auto complete = [](std::span<void* const> records) {
    for (std::size_t lane = 0; lane < records.size(); ++lane) {
      if (records[lane] == nullptr) continue;
      auto& mine = *static_cast<detail::Vote*>(records[lane]);
      const std::size_t width = static_cast<std::size_t>(mine.width);
      const std::size_t first = lane / width * width;
      for (std::size_t i = 0; i < width && first + i < records.size(); ++i) {
        const auto* other = static_cast<const detail::Vote*>(records[first + i]);
        if (other != nullptr && other->value == mine.value) mine.result |= std::uint64_t{1} << i;
      }
    }
  };
  meet({"match_any", detail::scope_of(width), complete, kShufflesOrderMemory}, &record, where);
  return record.result;
}

// What a lane wrote before it, the other lanes may read after it.
inline void sync_wave(int width = kWave, Where where = Where::current()) {
  char record = 0;
  meet({"sync_wave", detail::scope_of(width), [](std::span<void* const>) {}, true}, &record, where);
}

}  // namespace kintsugi::emulator
