#include "backend/gpu/runtime.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string_view>

#include "backend/gpu/hip/api.h"
#include "core/error.h"

namespace kintsugi::gpu {
namespace {

using hip::api;
using hip::kSuccess;

// The chips that this program has code for, separated by spaces (cmake/hip.cmake).
constexpr std::string_view kArchitectures = KINTSUGI_HIP_ARCHITECTURES;
constexpr std::size_t kLargestShared = std::size_t{64} << 10;  // of a block

// Values of HIP's enumerations, which no release has changed.
constexpr int kBusWidth = 59, kMemoryClock = 60, kMultiprocessors = 63,
              kWaveLanes = 87;          // hipDeviceAttribute_t
constexpr unsigned kPortable = 1;       // hipHostMallocPortable, hipHostRegisterPortable
constexpr unsigned kNonBlocking = 1;    // hipStreamNonBlocking
constexpr unsigned kDisableTiming = 2;  // hipEventDisableTiming
constexpr int kThreadLocal = 1;         // hipStreamCaptureModeThreadLocal

// Clears the error, so that the next call does not report it again.
bool succeeded(int status) {
  if (status == kSuccess) return true;
  api().hipGetLastError();
  return false;
}

void check(int status, const char* call, const Where& where) {
  if (succeeded(status)) [[likely]]
    return;
  failure("HIP: {} ({}) in {} at {}:{}", api().hipGetErrorString(status),
          api().hipGetErrorName(status), call, where.file_name(), where.line());
}

hip::Dim3 native(const std::array<unsigned, 3>& extents) {
  return {extents[0], extents[1], extents[2]};
}

int attribute(int name, int device, const Where& where) {
  int value = 0;
  check(api().hipDeviceGetAttribute(&value, name, device), "hipDeviceGetAttribute", where);
  return value;
}

// "gfx90a" of "gfx90a:sramecc+:xnack-".
std::string architecture_of(int device, const Where& where) {
  alignas(16) char properties[4096] = {};  // larger than the structure of any release
  check(api().properties(properties, device), "hipGetDeviceProperties", where);
  const char* const name = properties + api().architecture_offset;
  const std::string_view text(name, strnlen(name, 255));
  return std::string(text.substr(0, text.find(':')));
}

// Sixteen letters, or bytes.
std::string uuid_text(const unsigned char (&uuid)[16]) {
  if (std::all_of(std::begin(uuid), std::end(uuid), [](int c) { return std::isxdigit(c) != 0; }))
    return "GPU-" + std::string(reinterpret_cast<const char*>(uuid), sizeof(uuid));
  return fmt::format("GPU-{:02x}", fmt::join(uuid, ""));
}

}  // namespace

// ---- devices

const char* platform() { return "hip"; }

int device_count() noexcept {
  int count = 0;
  const hip::Api* const found = hip::find_api();
  return found != nullptr && succeeded(found->hipGetDeviceCount(&count)) ? count : 0;
}

std::string why_no_device() {
  const hip::Api* const found = hip::find_api();
  if (found == nullptr)
    return fmt::format(
        "no AMD GPU can be used: {}; load the module of ROCm or add its lib to LD_LIBRARY_PATH",
        hip::why_not_open());
  int count = 0;
  const int status = found->hipGetDeviceCount(&count);
  if (succeeded(status) && count > 0) return "";
  return fmt::format(
      "no AMD GPU can be used: {} finds none ({}); is this a compute node, and "
      "ROCR_VISIBLE_DEVICES right?",
      found->file, found->hipGetErrorString(status));
}

Device device_at(int index, Where where) {
  char name[256] = {}, pci[64] = {};
  unsigned char uuid[16] = {};
  std::size_t bytes = 0;
  check(api().hipDeviceGetName(name, sizeof(name) - 1, index), "hipDeviceGetName", where);
  check(api().hipDeviceGetPCIBusId(pci, sizeof(pci) - 1, index), "hipDeviceGetPCIBusId", where);
  check(api().hipDeviceGetUuid(uuid, index), "hipDeviceGetUuid", where);
  check(api().hipDeviceTotalMem(&bytes, index), "hipDeviceTotalMem", where);
  return {.index = index,
          .name = *name != '\0' ? name : "AMD " + architecture_of(index, where),
          .uuid = uuid_text(uuid),
          .pci = pci,
          .memory_bytes = bytes};
}

Traits traits_of(int device, Where where) {
  const auto of = [&](int name) { return attribute(name, device, where); };
  return {.architecture = architecture_of(device, where),
          .multiprocessors = of(kMultiprocessors),
          // Two transfers per clock, as in all memory of GPUs today.
          .memory_bytes_per_s = 2e3 * of(kMemoryClock) * (of(kBusWidth) / 8),
          .warpgroups = false,
          .overlaps_launches = false,
          .reliable_graphs = false,  // known bugs in ROCm up to 7.2
          .checks_libraries = true};
}

std::string why_unsupported(int device) {
  const std::string mine = architecture_of(device, Where::current());
  constexpr int kLanes = 64;
  if (const int lanes = attribute(kWaveLanes, device, Where::current()); lanes != kLanes)
    return fmt::format("{} ({}) has waves of {} lanes, and the kernels are made for {}",
                       device_at(device).name, mine, lanes, kLanes);
  std::string_view rest = kArchitectures;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == mine) return "";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return fmt::format("{} is a {}, and this program has code for {} only", device_at(device).name,
                     mine, kArchitectures);
}

void select_device(int index, Where where) {
  check(api().hipSetDevice(index), "hipSetDevice", where);
}

void synchronize_device(Where where) {
  check(api().hipDeviceSynchronize(), "hipDeviceSynchronize", where);
}

void drain_device() noexcept { succeeded(api().hipDeviceSynchronize()); }

// ---- memory

MemoryInfo memory_info(Where where) {
  MemoryInfo info;
  check(api().hipMemGetInfo(&info.free, &info.total), "hipMemGetInfo", where);
  return info;
}

void* try_allocate(std::size_t bytes, Where where) {
  void* address = nullptr;
  const int status = api().hipMalloc(&address, bytes);
  if (status != hip::kOutOfMemory) check(status, "hipMalloc", where);
  return succeeded(status) ? address : nullptr;
}

void release(void* address) noexcept { succeeded(api().hipFree(address)); }

void* try_allocate_host(std::size_t bytes, Where where) {
  void* address = nullptr;
  const int status = api().hipHostMalloc(&address, bytes, kPortable);
  if (status != hip::kOutOfMemory) check(status, "hipHostMalloc", where);
  return succeeded(status) ? address : nullptr;
}

void release_host(void* address) noexcept { succeeded(api().hipHostFree(address)); }

bool try_lock(void* address, std::size_t bytes) noexcept {
  return succeeded(api().hipHostRegister(address, bytes, kPortable));
}

void unlock(void* address) noexcept { succeeded(api().hipHostUnregister(address)); }

bool is_on_device(const void* address, Where) {
  int attributes[64] = {};  // the kind of memory comes first
  // Memory that the runtime does not know is the host's; ROCm 5 calls it an error.
  if (!succeeded(api().hipPointerGetAttributes(attributes, address))) return false;
  constexpr int kManaged = 3;
  const int device = api().major < 6 ? 1 : 2;
  return attributes[0] == device || attributes[0] == kManaged;
}

void copy(void* to, const void* from, std::size_t bytes, Copy kind, Stream stream, Where where) {
  check(api().hipMemcpyAsync(to, from, bytes, static_cast<int>(kind), stream), "hipMemcpyAsync",
        where);
}

void copy_rows(Pitched to, Pitched from, std::size_t row_bytes, std::size_t rows, Copy kind,
               Stream stream, Where where) {
  check(api().hipMemcpy2DAsync(to.address, to.pitch, from.address, from.pitch, row_bytes, rows,
                               static_cast<int>(kind), stream),
        "hipMemcpy2DAsync", where);
}

void set_bytes(void* address, int value, std::size_t bytes, Stream stream, Where where) {
  check(api().hipMemsetAsync(address, value, bytes, stream), "hipMemsetAsync", where);
}

// ---- streams

Stream create_stream(Priority priority, Where where) {
  int least = 0, greatest = 0;
  check(api().hipDeviceGetStreamPriorityRange(&least, &greatest), "hipDeviceGetStreamPriorityRange",
        where);
  void* stream = nullptr;
  check(api().hipStreamCreateWithPriority(&stream, kNonBlocking,
                                          priority == Priority::Highest ? greatest : 0),
        "hipStreamCreateWithPriority", where);
  return static_cast<Stream>(stream);
}

void destroy(Stream stream) noexcept { succeeded(api().hipStreamDestroy(stream)); }

void synchronize(Stream stream, Where where) {
  check(api().hipStreamSynchronize(stream), "hipStreamSynchronize", where);
}

void drain(Stream stream) noexcept { succeeded(api().hipStreamSynchronize(stream)); }

// ---- events

Event create_event(Timing timing, Where where) {
  void* event = nullptr;
  check(api().hipEventCreateWithFlags(&event, timing == Timing::On ? 0 : kDisableTiming),
        "hipEventCreateWithFlags", where);
  return static_cast<Event>(event);
}

void destroy(Event event) noexcept { succeeded(api().hipEventDestroy(event)); }

void record(Event event, Stream stream, Where where) {
  check(api().hipEventRecord(event, stream), "hipEventRecord", where);
}

void record_if_possible(Event event, Stream stream) noexcept {
  succeeded(api().hipEventRecord(event, stream));
}

void wait(Stream stream, Event event, Where where) {
  check(api().hipStreamWaitEvent(stream, event, 0), "hipStreamWaitEvent", where);
}

bool is_done(Event event, Where where) {
  const int status = api().hipEventQuery(event);
  if (status != hip::kNotReady) check(status, "a GPU operation", where);
  return succeeded(status);
}

void synchronize(Event event, Where where) {
  check(api().hipEventSynchronize(event), "hipEventSynchronize", where);
}

double elapsed_ms(Event begin, Event end, Where where) {
  float elapsed = 0;
  check(api().hipEventElapsedTime(&elapsed, begin, end), "hipEventElapsedTime", where);
  return static_cast<double>(elapsed);
}

// ---- graphs

bool is_capturing(Stream stream, Where where) {
  int status = 0;
  check(api().hipStreamIsCapturing(stream, &status), "hipStreamIsCapturing", where);
  return status != 0;
}

void begin_capture(Stream stream, Where where) {
  check(api().hipStreamBeginCapture(stream, kThreadLocal), "hipStreamBeginCapture", where);
}

Graph end_capture(Stream stream, Where where) {
  void *recorded = nullptr, *graph = nullptr;
  check(api().hipStreamEndCapture(stream, &recorded), "hipStreamEndCapture", where);
  const int status = api().hipGraphInstantiate(&graph, recorded, nullptr, nullptr, 0);
  api().hipGraphDestroy(recorded);
  check(status, "hipGraphInstantiate", where);
  return static_cast<Graph>(graph);
}

void abandon_capture(Stream stream) noexcept {
  void* recorded = nullptr;
  succeeded(api().hipStreamEndCapture(stream, &recorded));
  if (recorded != nullptr) api().hipGraphDestroy(recorded);
}

void launch(Graph graph, Stream stream, Where where) {
  check(api().hipGraphLaunch(graph, stream), "hipGraphLaunch", where);
}

void destroy(Graph graph) noexcept { succeeded(api().hipGraphExecDestroy(graph)); }

// ---- kernels

void launch_kernel(const void* kernel, const Grid& grid, void** arguments, Stream stream, bool,
                   Where where) {
  check(api().hipLaunchKernel(kernel, native(grid.blocks), native(grid.threads), arguments,
                              grid.shared_bytes, stream),
        "a kernel launch", where);
}

// A block has all of it without asking.
void allow_shared_bytes(const void*, std::size_t bytes, Where where) {
  KINTSUGI_CHECK(bytes <= kLargestShared, "a kernel with {} bytes of shared memory at {}:{}", bytes,
                 where.file_name(), where.line());
}

int resident_blocks(const void* kernel, int threads, Where where) {
  int blocks = 0;
  check(api().hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0),
        "hipOccupancyMaxActiveBlocksPerMultiprocessor", where);
  return blocks;
}

}  // namespace kintsugi::gpu
