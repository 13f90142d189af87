#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <span>
#include <string>

// Executes the kernels of a GPU on processor cores. Each thread of a block is a function call that
// becomes a fiber when it must wait for other threads.
//
// KINTSUGI_WAVE is the number of lanes that the hardware runs in lock-step: 32 (NVIDIA) or 64
// (AMD's CDNA). One program has one width.
//
// Environment:
//   KINTSUGI_EMULATOR_ORDER  which thread goes on first: forward (default), reverse, or a number,
//                            the seed of a random order
//   KINTSUGI_EMULATOR_CORES  how many processor cores run the blocks of a launch; 2 by default
namespace kintsugi::emulator {

using Where = std::source_location;

static_assert(KINTSUGI_WAVE == 32 || KINTSUGI_WAVE == 64);
inline constexpr int kWave = KINTSUGI_WAVE;
inline constexpr int kTeam = 32;  // a warp of NVIDIA's GPUs, half a wave of AMD's
inline constexpr unsigned kMaxThreads = 1024;

struct Grid {
  std::array<unsigned, 3> blocks = {1, 1, 1}, threads = {1, 1, 1};
  std::size_t shared_bytes = 0;  // of dynamic shared memory
};

// Calls `thread_body` once for each thread of the grid; returns when all have returned. Throws
// what a thread throws, and a Failure for a mistake in the use of barriers, lanes or memory.
void run(const Grid& grid, const std::function<void()>& thread_body,
         Where where = Where::current());

// ---- for a thread of a kernel
struct Index {
  unsigned x, y, z;
};

struct Coordinates {
  Index thread, block, block_size, grid_size;
  unsigned number;  // of the thread in its block: the lanes of a wave have consecutive numbers
};

namespace detail {
inline thread_local constinit Coordinates coordinates{};
inline thread_local constinit bool inside_kernel = false;
}  // namespace detail

inline const Coordinates& here() { return detail::coordinates; }

// Who must call a collective together.
enum class Scope : std::uint8_t { Team, Wave, Block };

// Every collective of lanes and every barrier is one of these. Each thread gives the address of its
// own record and waits. When all threads of the scope that have not returned have arrived, one of
// them calls complete() with the records of all, which fills in the results; nullptr stands for a
// thread that has returned. All must come from the same place in the source.
struct Collective {
  const char* name;
  Scope scope;
  void (*complete)(std::span<void* const> records);
  bool orders_memory;  // what a thread wrote before, the others may read after it
};
void meet(const Collective& collective, void* record, Where where);

// The block barrier, __syncthreads(). Threads that have returned count as arrived.
void sync_block(Where where = Where::current());

// ---- for the race check
// The time of a block is the number of its collectives that are complete.
struct Moment {
  std::uint32_t first_block, blocks;  // of the launch
  std::uint32_t block;                // unique in the process
  std::uint32_t thread;               // in the block
  std::uint32_t time;
};
inline bool inside_kernel() { return detail::inside_kernel; }
Moment now();
// What `thread` of the running block did before this time is ordered before what the running thread
// does now.
std::uint32_t ordered_until(std::uint32_t thread);
// "thread (3,0,0) of block (1,0,0)"
std::string name_of_thread(std::uint32_t number);

}  // namespace kintsugi::emulator
