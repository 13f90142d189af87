// backend/gpu/runtime.h on processor cores: device memory is host memory, and every call is done
// when it returns. Recorded calls are kept as functions.
#include "backend/gpu/runtime.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "core/error.h"
#include "emulator/device_memory.h"
#include "emulator/executor.h"
#include "emulator/kernels.h"
#include "emulator/runtime.h"
#include "emulator/shared_memory.h"

namespace kintsugi::gpu {

using Calls = std::vector<std::function<void()>>;

struct StreamHandle {
  bool capturing = false;
  Calls recorded = {};
};
struct EventHandle {
  std::chrono::steady_clock::time_point time = {};
  bool timed = true;
};
struct GraphHandle {
  Calls calls;
};

namespace {

using emulator::memory;
constexpr std::size_t kMemory = emulator::DeviceMemory::kBytes;

// Does the call, or records it.
void queue(Stream stream, std::function<void()> call) {
  if (stream != nullptr && stream->capturing)
    stream->recorded.push_back(std::move(call));
  else
    call();
}

}  // namespace

// ---- devices

const char* platform() { return "emulated"; }
int device_count() noexcept { return 1; }
std::string why_no_device() { return ""; }

Device device_at(int index, Where) {
  return {.index = index,
          .name = fmt::format("emulated GPU with waves of {} lanes", emulator::kWave),
          .uuid = "GPU-00000000",
          .pci = "0000:00:00.0",
          .memory_bytes = kMemory};
}

Traits traits_of(int, Where) {
  return {.architecture = "emulated",
          .multiprocessors = 4,
          .memory_bytes_per_s = 0,
          .warpgroups = emulator::kWave == 32 && !std::getenv("KINTSUGI_EMULATE_NO_WARPGROUPS"),
          .overlaps_launches = false,
          .reliable_graphs = true,
          .checks_libraries = false};
}

std::string why_unsupported(int) { return ""; }
void select_device(int, Where) {}
void synchronize_device(Where) {}
void drain_device() noexcept {}

// ---- memory

MemoryInfo memory_info(Where) { return {memory().free(), kMemory}; }
void* try_allocate(std::size_t bytes, Where) { return memory().allocate(bytes); }
void release(void* address) noexcept { memory().release(address); }
void* try_allocate_host(std::size_t bytes, Where) {
  return std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}
void release_host(void* address) noexcept { std::free(address); }
bool try_lock(void*, std::size_t) noexcept { return true; }
void unlock(void*) noexcept {}
bool is_on_device(const void* address, Where) { return memory().contains(address); }

void copy(void* to, const void* from, std::size_t bytes, Copy, Stream stream, Where) {
  queue(stream, [=] { std::memmove(to, from, bytes); });
}

void copy_rows(Pitched to, Pitched from, std::size_t row_bytes, std::size_t rows, Copy,
               Stream stream, Where) {
  queue(stream, [=] {
    for (std::size_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<std::byte*>(to.address) + row * to.pitch,
                  static_cast<const std::byte*>(from.address) + row * from.pitch, row_bytes);
  });
}

void set_bytes(void* address, int value, std::size_t bytes, Stream stream, Where) {
  queue(stream, [=] { std::memset(address, value, bytes); });
}

// ---- streams

Stream create_stream(Priority, Where) { return new StreamHandle; }
void destroy(Stream stream) noexcept { delete stream; }
void synchronize(Stream stream, Where) {
  KINTSUGI_CHECK(stream == nullptr || !stream->capturing, "the host waits for a recorded stream");
}
void drain(Stream) noexcept {}

// ---- events

Event create_event(Timing timing, Where) { return new EventHandle{.timed = timing == Timing::On}; }
void destroy(Event event) noexcept { delete event; }
void record(Event event, Stream stream, Where) {
  queue(stream, [event] { event->time = std::chrono::steady_clock::now(); });
}
void record_if_possible(Event event, Stream stream) noexcept { record(event, stream); }
void wait(Stream, Event, Where) {}
bool is_done(Event, Where) { return true; }
void synchronize(Event, Where) {}
double elapsed_ms(Event begin, Event end, Where) {
  KINTSUGI_CHECK(begin->timed && end->timed, "an event without a time");
  return std::chrono::duration<double, std::milli>(end->time - begin->time).count();
}

// ---- graphs

bool is_capturing(Stream stream, Where) { return stream != nullptr && stream->capturing; }
void begin_capture(Stream stream, Where) {
  KINTSUGI_CHECK(!stream->capturing, "the stream is recorded already");
  *stream = {.capturing = true};
}
Graph end_capture(Stream stream, Where) {
  stream->capturing = false;
  return new GraphHandle{std::exchange(stream->recorded, {})};
}
void abandon_capture(Stream stream) noexcept { *stream = {}; }
void launch(Graph graph, Stream stream, Where) {
  for (const auto& call : graph->calls) queue(stream, call);
}
void destroy(Graph graph) noexcept { delete graph; }

// ---- kernels

void queue_on_host(Stream stream, std::function<void()> work) { queue(stream, std::move(work)); }

void launch_kernel(const void* kernel, const Grid& grid, void** arguments, Stream stream, bool,
                   Where) {
  queue(stream, [grid, launch = emulator::announced_launch(kernel, arguments)] {
    emulator::run({grid.blocks, grid.threads, grid.shared_bytes}, launch.body, launch.where);
  });
}

void allow_shared_bytes(const void*, std::size_t bytes, Where where) {
  KINTSUGI_CHECK(bytes <= emulator::shared_limit(),
                 "a kernel with {} bytes of shared memory ({}:{}): at most {}", bytes,
                 where.file_name(), where.line(), emulator::shared_limit());
}

int resident_blocks(const void*, int, Where) { return 2; }

}  // namespace kintsugi::gpu
