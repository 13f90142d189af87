#include "backend/gpu/runtime.h"

#include <fmt/format.h>

#include "backend/gpu/cuda/native.h"
#include "core/error.h"

namespace kintsugi::gpu {
namespace {

constexpr int kOldestMajor = 8;  // the lowest compute capability that the kernels are built for

// Clears the error, so that the next call does not report it again.
bool succeeded(cudaError_t status) {
  if (status == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

void check(cudaError_t status, const char* call, const Where& where) {
  if (succeeded(status)) [[likely]]
    return;
  failure("CUDA: {} ({}) in {} at {}:{}", cudaGetErrorString(status), cudaGetErrorName(status),
          call, where.file_name(), where.line());
}

cudaGraphExec_t native(Graph graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }
dim3 native(const std::array<unsigned, 3>& extents) { return {extents[0], extents[1], extents[2]}; }

int attribute(cudaDeviceAttr name, int device, const Where& where) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute", where);
  return value;
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

// ---- devices

const char* platform() { return "cuda"; }

int device_count() noexcept {
  int count = 0;
  return succeeded(cudaGetDeviceCount(&count)) ? count : 0;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (succeeded(status)) return "";
  int driver = 0;  // stays 0 if no driver is installed
  cudaDriverGetVersion(&driver);
  return fmt::format("no CUDA device can be used: {}; install a driver for CUDA {}",
                     driver == 0 ? "there is no NVIDIA driver" : cudaGetErrorString(status),
                     CUDART_VERSION / 1000);
}

Device device_at(int index, Where where) {
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", where);
  return {.index = index,
          .name = properties.name,
          .uuid = uuid_text(properties.uuid),
          .pci = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID,
                             properties.pciDeviceID),
          .memory_bytes = properties.totalGlobalMem};
}

#ifdef KINTSUGI_HOPPER_CODE
constexpr bool kHasHopperCode = true;
#else
constexpr bool kHasHopperCode = false;
#endif

Traits traits_of(int device, Where where) {
  const auto of = [&](cudaDeviceAttr name) { return attribute(name, device, where); };
  const int major = of(cudaDevAttrComputeCapabilityMajor);
  return {.architecture = fmt::format("{}.{}", major, of(cudaDevAttrComputeCapabilityMinor)),
          .multiprocessors = of(cudaDevAttrMultiProcessorCount),
          // Two transfers per clock, as in all memory of GPUs today.
          .memory_bytes_per_s =
              2e3 * of(cudaDevAttrMemoryClockRate) * (of(cudaDevAttrGlobalMemoryBusWidth) / 8),
          .warpgroups = kHasHopperCode && major == 9,
          .overlaps_launches = major >= 9,
          .reliable_graphs = true,
          .checks_libraries = false};
}

std::string why_unsupported(int device) {
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device, Where::current());
  if (major >= kOldestMajor) return "";
  return fmt::format("{} has compute capability {}, but {}.0 or newer is needed",
                     device_at(device).name, traits_of(device).architecture, kOldestMajor);
}

void select_device(int index, Where where) { check(cudaSetDevice(index), "cudaSetDevice", where); }

void synchronize_device(Where where) {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", where);
}

void drain_device() noexcept { succeeded(cudaDeviceSynchronize()); }

// ---- memory

MemoryInfo memory_info(Where where) {
  MemoryInfo info;
  check(cudaMemGetInfo(&info.free, &info.total), "cudaMemGetInfo", where);
  return info;
}

void* try_allocate(std::size_t bytes, Where where) {
  void* address = nullptr;
  const cudaError_t status = cudaMalloc(&address, bytes);
  if (status != cudaErrorMemoryAllocation) check(status, "cudaMalloc", where);
  return succeeded(status) ? address : nullptr;
}

void release(void* address) noexcept { succeeded(cudaFree(address)); }

void* try_allocate_host(std::size_t bytes, Where where) {
  void* address = nullptr;
  const cudaError_t status = cudaHostAlloc(&address, bytes, cudaHostAllocPortable);
  if (status != cudaErrorMemoryAllocation) check(status, "cudaHostAlloc", where);
  return succeeded(status) ? address : nullptr;
}

void release_host(void* address) noexcept { succeeded(cudaFreeHost(address)); }

bool try_lock(void* address, std::size_t bytes) noexcept {
  return succeeded(cudaHostRegister(address, bytes, cudaHostRegisterPortable));
}

void unlock(void* address) noexcept { succeeded(cudaHostUnregister(address)); }

bool is_on_device(const void* address, Where where) {
  cudaPointerAttributes attributes = {};
  check(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes", where);
  return attributes.type != cudaMemoryTypeHost && attributes.type != cudaMemoryTypeUnregistered;
}

void copy(void* to, const void* from, std::size_t bytes, Copy kind, Stream stream, Where where) {
  check(cudaMemcpyAsync(to, from, bytes, static_cast<cudaMemcpyKind>(kind), native(stream)),
        "cudaMemcpyAsync", where);
}

void copy_rows(Pitched to, Pitched from, std::size_t row_bytes, std::size_t rows, Copy kind,
               Stream stream, Where where) {
  check(cudaMemcpy2DAsync(to.address, to.pitch, from.address, from.pitch, row_bytes, rows,
                          static_cast<cudaMemcpyKind>(kind), native(stream)),
        "cudaMemcpy2DAsync", where);
}

void set_bytes(void* address, int value, std::size_t bytes, Stream stream, Where where) {
  check(cudaMemsetAsync(address, value, bytes, native(stream)), "cudaMemsetAsync", where);
}

// ---- streams

Stream create_stream(Priority priority, Where where) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange",
        where);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == Priority::Highest ? greatest : 0),
        "cudaStreamCreateWithPriority", where);
  return reinterpret_cast<Stream>(stream);
}

void destroy(Stream stream) noexcept { succeeded(cudaStreamDestroy(native(stream))); }

void synchronize(Stream stream, Where where) {
  check(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize", where);
}

void drain(Stream stream) noexcept { succeeded(cudaStreamSynchronize(native(stream))); }

// ---- events

Event create_event(Timing timing, Where where) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event,
                                 timing == Timing::On ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags", where);
  return reinterpret_cast<Event>(event);
}

void destroy(Event event) noexcept { succeeded(cudaEventDestroy(native(event))); }

void record(Event event, Stream stream, Where where) {
  check(cudaEventRecord(native(event), native(stream)), "cudaEventRecord", where);
}

void record_if_possible(Event event, Stream stream) noexcept {
  succeeded(cudaEventRecord(native(event), native(stream)));
}

void wait(Stream stream, Event event, Where where) {
  check(cudaStreamWaitEvent(native(stream), native(event), 0), "cudaStreamWaitEvent", where);
}

bool is_done(Event event, Where where) {
  const cudaError_t status = cudaEventQuery(native(event));
  if (status != cudaErrorNotReady) check(status, "a GPU operation", where);
  return succeeded(status);
}

void synchronize(Event event, Where where) {
  check(cudaEventSynchronize(native(event)), "cudaEventSynchronize", where);
}

double elapsed_ms(Event begin, Event end, Where where) {
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, native(begin), native(end)), "cudaEventElapsedTime", where);
  return static_cast<double>(elapsed);
}

// ---- graphs

bool is_capturing(Stream stream, Where where) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(native(stream), &status), "cudaStreamIsCapturing", where);
  return status != cudaStreamCaptureStatusNone;
}

void begin_capture(Stream stream, Where where) {
  check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture", where);
}

Graph end_capture(Stream stream, Where where) {
  cudaGraph_t recorded = nullptr;
  check(cudaStreamEndCapture(native(stream), &recorded), "cudaStreamEndCapture", where);
  cudaGraphExec_t graph = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&graph, recorded, 0);
  cudaGraphDestroy(recorded);
  check(status, "cudaGraphInstantiate", where);
  return reinterpret_cast<Graph>(graph);
}

void abandon_capture(Stream stream) noexcept {
  cudaGraph_t recorded = nullptr;
  succeeded(cudaStreamEndCapture(native(stream), &recorded));
  if (recorded != nullptr) cudaGraphDestroy(recorded);
}

void launch(Graph graph, Stream stream, Where where) {
  check(cudaGraphLaunch(native(graph), native(stream)), "cudaGraphLaunch", where);
}

void destroy(Graph graph) noexcept { succeeded(cudaGraphExecDestroy(native(graph))); }

// ---- kernels

void launch_kernel(const void* kernel, const Grid& grid, void** arguments, Stream stream,
                   bool overlapped, Where where) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = native(grid.blocks);
  config.blockDim = native(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = native(stream);
  config.attrs = &overlap;
  config.numAttrs = overlapped ? 1 : 0;
  check(cudaLaunchKernelExC(&config, kernel, arguments), "a kernel launch", where);
}

void allow_shared_bytes(const void* kernel, std::size_t bytes, Where where) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute", where);
}

int resident_blocks(const void* kernel, int threads, Where where) {
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor", where);
  return blocks;
}

}  // namespace kintsugi::gpu
