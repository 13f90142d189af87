#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>

#include "backend/device.h"

// The calls of a GPU's runtime that this program needs, the same for every vendor: cuda/runtime.cpp
// and hip/runtime.cpp define them. They throw Failure with the runtime's message and the place of
// the call. Those that are noexcept are for destructors and threads that must not fail: they ignore
// errors.
namespace kintsugi::gpu {

using Graph = struct GraphHandle*;  // recorded calls, ready to launch
using Where = std::source_location;

// ---- devices
const char* platform();       // "cuda" or "hip", as the key `device` names it
int device_count() noexcept;  // 0 if none can be used
std::string why_no_device();  // in a few words; empty: there is one
Device device_at(int index, Where where = Where::current());  // without a stream

struct Traits {
  std::string architecture;  // "9.0", "gfx90a"
  int multiprocessors = 0;
  double memory_bytes_per_s = 0;   // 0: not known
  bool warpgroups = false;         // matrices in shared memory (kernels/platform.cuh)
  bool overlaps_launches = false;  // programmatic dependent launch (kernels/launch.cuh)
  bool reliable_graphs = false;    // so that runs replay them unless told otherwise
  bool checks_libraries = false;   // when a backend is made (self_check.h)
};
Traits traits_of(int device, Where where = Where::current());
std::string why_unsupported(int device);  // by our kernels; empty: they run there

void select_device(int index, Where where = Where::current());  // for this thread
void synchronize_device(Where where = Where::current());
void drain_device() noexcept;  // like synchronize_device

// ---- memory
struct MemoryInfo {
  std::size_t free = 0, total = 0;
};
MemoryInfo memory_info(Where where = Where::current());
void* try_allocate(std::size_t bytes, Where where = Where::current());  // nullptr: no memory left
void release(void* address) noexcept;                                   // waits for the device
// Page-locked host memory.
void* try_allocate_host(std::size_t bytes, Where where = Where::current());
void release_host(void* address) noexcept;
bool try_lock(void* address, std::size_t bytes) noexcept;  // locks pages that exist
void unlock(void* address) noexcept;
bool is_on_device(const void* address, Where where = Where::current());

enum class Copy : std::uint8_t {
  ToDevice = 1,
  ToHost = 2,
  OnDevice = 3
};  // as both runtimes count
void copy(void* to, const void* from, std::size_t bytes, Copy kind, Stream stream,
          Where where = Where::current());
// The rows of a matrix; a pitch is the bytes from one row to the next.
struct Pitched {
  void* address;
  std::size_t pitch;
};
void copy_rows(Pitched to, Pitched from, std::size_t row_bytes, std::size_t rows, Copy kind,
               Stream stream, Where where = Where::current());
void set_bytes(void* address, int value, std::size_t bytes, Stream stream,
               Where where = Where::current());

// ---- streams, which do not synchronize with the default stream
enum class Priority : std::uint8_t { Normal, Highest };
Stream create_stream(Priority priority = Priority::Normal, Where where = Where::current());
void destroy(Stream stream) noexcept;
void synchronize(Stream stream, Where where = Where::current());
void drain(Stream stream) noexcept;  // like synchronize

// ---- events
enum class Timing : std::uint8_t { On, Off };
Event create_event(Timing timing = Timing::On, Where where = Where::current());
void destroy(Event event) noexcept;
void record(Event event, Stream stream, Where where = Where::current());
void record_if_possible(Event event, Stream stream) noexcept;
void wait(Stream stream, Event event, Where where = Where::current());
bool is_done(Event event, Where where = Where::current());
void synchronize(Event event, Where where = Where::current());
double elapsed_ms(Event begin, Event end, Where where = Where::current());

// ---- graphs
bool is_capturing(Stream stream, Where where = Where::current());
void begin_capture(Stream stream, Where where = Where::current());
Graph end_capture(Stream stream, Where where = Where::current());
void abandon_capture(Stream stream) noexcept;
void launch(Graph graph, Stream stream, Where where = Where::current());
void destroy(Graph graph) noexcept;

// ---- kernels, by the address of their function; kernels/launch.cuh has the typed form
struct Grid {
  std::array<unsigned, 3> blocks = {1, 1, 1}, threads = {1, 1, 1};
  std::size_t shared_bytes = 0;  // of dynamic shared memory
};
// `overlapped`: may start while the kernel before it in the stream still runs.
void launch_kernel(const void* kernel, const Grid& grid, void** arguments, Stream stream,
                   bool overlapped, Where where = Where::current());
// Lets a kernel have more dynamic shared memory than every GPU grants.
void allow_shared_bytes(const void* kernel, std::size_t bytes, Where where = Where::current());
// How many blocks of a kernel a multiprocessor runs at a time.
int resident_blocks(const void* kernel, int threads, Where where = Where::current());

}  // namespace kintsugi::gpu
