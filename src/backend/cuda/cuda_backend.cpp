#include "backend/cuda/cuda_backend.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/cuda_peaks.h"
#include "backend/cuda/matmul_plan.h"
#include "backend/library_memory.h"
#include "core/free_memory.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr int kOldestMajor = 8;  // the lowest compute capability that the kernels are built for

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

CudaDevice describe(int index, const cudaDeviceProp& properties) {
  return {.index = index,
          .name = properties.name,
          .uuid = uuid_text(properties.uuid),
          .pci = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID,
                             properties.pciDeviceID),
          .memory_bytes = properties.totalGlobalMem};
}

// Tuning of matmuls depends on timing: a deterministic run may tune only if the choices are stored.
bool may_tune(const CudaOptions& options) {
  return !options.deterministic || !options.matmul_cache.empty();
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::vector<CudaDevice> cuda_devices() {
  std::vector<CudaDevice> devices;
  for (int i = 0; i < cuda_device_count(); ++i) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, i) == cudaSuccess)
      devices.push_back(describe(i, properties));
    else
      cudaGetLastError();
  }
  return devices;
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    int driver = 0;  // stays 0 if no driver is installed
    cudaDriverGetVersion(&driver);
    user_error("no CUDA device can be used: {}; install a driver for CUDA {} or set device: cpu",
               driver == 0 ? "there is no NVIDIA driver" : cudaGetErrorString(status),
               CUDART_VERSION / 1000);
  }
  if (options.device < 0 || options.device >= count)
    user_error("there is no CUDA device {}: this machine has {}, counted from 0", options.device,
               count);
  cudaDeviceProp properties = {};
  KINTSUGI_CUDA(cudaGetDeviceProperties(&properties, options.device));
  if (properties.major < kOldestMajor)
    user_error("{} has compute capability {}.{}, but {}.0 or newer is needed; set device: cpu",
               properties.name, properties.major, properties.minor, kOldestMajor);
  KINTSUGI_CUDA(cudaSetDevice(options.device));
  return std::make_unique<cuda::CudaBackend>(options, describe(options.device, properties),
                                             properties.multiProcessorCount);
}

void* cuda_stream(Backend& backend) {
  auto* cuda = dynamic_cast<cuda::CudaBackend*>(&backend);
  return cuda == nullptr ? nullptr : cuda->stream();
}

std::size_t library_bytes(Backend& backend, const LibraryUse& use) {
  return cuda_stream(backend) == nullptr ? 0 : cuda_library_bytes(use);
}

CudaDevice cuda_device_of(Backend& backend) {
  auto* cuda = dynamic_cast<cuda::CudaBackend*>(&backend);
  return cuda == nullptr ? CudaDevice{} : cuda->device();
}

double cuda_event_time(Backend& backend, void* event) {
  auto* cuda = dynamic_cast<cuda::CudaBackend*>(&backend);
  KINTSUGI_CHECK(cuda != nullptr, "the event is not of a CUDA backend");
  return cuda->timer().seconds(static_cast<cudaEvent_t>(event));
}

std::vector<OperationTime> take_operation_times(Backend& backend) {
  auto* cuda = dynamic_cast<cuda::CudaBackend*>(&backend);
  return cuda == nullptr ? std::vector<OperationTime>() : cuda->timer().take();
}

namespace cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// Programmatic dependent launch exists since Hopper.
bool overlaps_launches(int device) {
  int major = 0;
  KINTSUGI_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

}  // namespace

OwnStream::OwnStream() {
  KINTSUGI_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
OwnStream::~OwnStream() { cudaStreamDestroy(stream_); }

Staging::Staging() {
  for (Slot& slot : slots_) {
    KINTSUGI_CUDA(cudaMallocHost(&slot.address, kSlotBytes));
    KINTSUGI_CUDA(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming));
  }
}

Staging::~Staging() {
  for (const Slot& slot : slots_) {
    cudaEventDestroy(slot.done);
    cudaFreeHost(slot.address);
  }
}

void Staging::upload(void* destination, const void* source, std::size_t bytes, Stream stream) {
  for (std::size_t begin = 0; begin < bytes; begin += kSlotBytes) {
    const std::size_t length = std::min(kSlotBytes, bytes - begin);
    const Slot& slot = slots_[next_++ % slots_.size()];
    KINTSUGI_CUDA(cudaEventSynchronize(slot.done));
    std::memcpy(slot.address, static_cast<const std::byte*>(source) + begin, length);
    KINTSUGI_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(destination) + begin, slot.address,
                                  length, cudaMemcpyHostToDevice, stream));
    KINTSUGI_CUDA(cudaEventRecord(slot.done, stream));
  }
}

CudaBackend::CudaBackend(const CudaOptions& options, CudaDevice device, int multiprocessors)
    : options_(options),
      device_(std::move(device)),
      workspace_(kWorkspaceBytes),
      context_{stream_.get(), multiprocessors, workspace_,
               matmul_,       attention_,      overlaps_launches(device_.index)},
      matmul_({.tf32 = options.tf32,
               .tune = may_tune(options),
               .cache_file = options.matmul_cache,
               .gpu = device_.name}),
      timer_(stream_.get(), options.trace) {
  attention_.set_deterministic(options.deterministic);
  if (options.time_operations) timer_.switch_on();
}

CudaBackend::~CudaBackend() { cudaStreamSynchronize(stream()); }

void* CudaBackend::allocate(std::size_t bytes) { return device_allocate(bytes); }
void CudaBackend::release(void* address, std::size_t) noexcept {
  cudaFree(address);  // waits for the device
  graphs_.forget_all();
}

std::string CudaBackend::description() const {
  return fmt::format("cuda:{}: {}, {} ({}, {}), cuBLASLt {}", device_.index, device_.name,
                     format_bytes(static_cast<double>(device_.memory_bytes)), device_.uuid,
                     device_.pci, cublasLtGetVersion());
}

Backend::Peak CudaBackend::peak_flops(DType dtype) {
  const std::string unit =
      options_.tf32 && dtype == DType::F32 ? "TF32" : std::string(to_string(dtype));
  if (const auto known = known_peak_flops(device_.name, dtype, options_.tf32))
    return {*known, fmt::format("data sheet of {}, dense {}", device_.name, unit)};
  if (dtype == DType::F8) return {0, fmt::format("no known fp8 rate of {}", device_.name)};
  return {measure_flops(dtype), fmt::format("measured {} matmul", unit)};
}

// Two transfers per clock, as in all memory of GPUs today.
Backend::DeviceFacts CudaBackend::device_facts() {
  int clock_khz = 0, bus_bits = 0;
  KINTSUGI_CUDA(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, device_.index));
  KINTSUGI_CUDA(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device_.index));
  return {.memory_bytes_per_s = 2e3 * clock_khz * (bus_bits / 8),
          .multiprocessors = context_.multiprocessors};
}

std::string CudaBackend::why_no_fp8(bool one_scale) const {
  int major = 0, minor = 0;
  KINTSUGI_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_.index));
  KINTSUGI_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_.index));
  if (major * 10 + minor < 89)
    return fmt::format("{} has compute capability {}.{}, fp8 needs 8.9 or newer", device_.name,
                       major, minor);
  if (one_scale) return "";
  constexpr const char* kAdvice = "use train.fp8.recipe: tensorwise";
  // cuBLASLt has the kernels for Hopper alone.
  if (major != 9)
    return fmt::format("{} has compute capability {}.{}, scales for each row need 9.0: {}",
                       device_.name, major, minor, kAdvice);
  const std::string missing = why_no_row_scales();
  return missing.empty() ? "" : fmt::format("{}: {}: {}", device_.name, missing, kAdvice);
}

double CudaBackend::measure_flops(DType dtype) {
  const std::int64_t n = size_of(dtype) == 2 ? 8192 : dtype == DType::F32 ? 4096 : 2048;
  Arena arena(*this);
  const Tensor a = arena.allocate(Region::Workspace, "peak", dtype, {n, n});
  const Tensor b = arena.allocate(Region::Workspace, "peak", dtype, {n, n});
  const Tensor c = arena.allocate(Region::Workspace, "peak", dtype, {n, n});
  // Constant operands would be faster than real ones: they switch fewer transistors.
  for (const Tensor& x : {a, b}) {
    fill(x, 0.5);
    dropout(x, x, {.probability = 0.5, .key = x.data() == a.data() ? 1u : 2u}, {});
  }
  constexpr int kRepetitions = 10;
  double best_ms = 1e30;
  cudaEvent_t begin = nullptr, end = nullptr;
  KINTSUGI_CUDA(cudaEventCreate(&begin));
  KINTSUGI_CUDA(cudaEventCreate(&end));
  for (int round = 0; round < 3; ++round) {
    matmul(c, a, b, {});  // the first one chooses an algorithm
    KINTSUGI_CUDA(cudaEventRecord(begin, stream()));
    for (int i = 0; i < kRepetitions; ++i) matmul(c, a, b, {});
    KINTSUGI_CUDA(cudaEventRecord(end, stream()));
    KINTSUGI_CUDA(cudaEventSynchronize(end));
    float elapsed_ms = 0;
    KINTSUGI_CUDA(cudaEventElapsedTime(&elapsed_ms, begin, end));
    best_ms = std::min(best_ms, static_cast<double>(elapsed_ms) / kRepetitions);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  const double side = static_cast<double>(n);
  return 2 * side * side * side / (best_ms * 1e-3);
}

// Reserves memory for what every run allocates later: kernels of cuBLASLt and cuDNN, graphs and
// events, 0.2 to 0.35 GiB on an H200. The CUDA context exists already. library_memory.h estimates
// what depends on the configuration.
std::size_t CudaBackend::available_bytes() const {
  constexpr std::size_t kLibraries = std::size_t{400} << 20;
  std::size_t free = 0, total = 0;
  KINTSUGI_CUDA(cudaMemGetInfo(&free, &total));
  return free - std::min(free, kLibraries);
}

std::size_t CudaBackend::own_bytes() const {
  return workspace_.bytes() + matmul_.own_bytes() + attention_.own_bytes();
}

// 512 MiB in bf16: enough for two thousand tokens or more, whose matmuls fill the device.
std::int64_t CudaBackend::classifier_elements() const { return std::int64_t{1} << 28; }

void CudaBackend::upload(Tensor destination, const void* source) {
  KINTSUGI_CHECK(destination.contiguous(), "upload into a strided tensor");
  KINTSUGI_CHECK(!is_capturing(stream()), "upload while a graph is captured");
  if (host_memory_.contains(destination.data())) {
    synchronize();
    std::memcpy(destination.data(), source, destination.bytes());
    return;
  }
  staging_.upload(destination.data(), source, destination.bytes(), stream());
}

void CudaBackend::download(void* destination, Tensor source) {
  KINTSUGI_CHECK(source.contiguous(), "download of a strided tensor");
  if (host_memory_.contains(source.data())) {
    synchronize();
    std::memcpy(destination, source.data(), source.bytes());
    return;
  }
  KINTSUGI_CUDA(cudaMemcpyAsync(destination, source.data(), source.bytes(), cudaMemcpyDeviceToHost,
                                stream()));
  synchronize();
}

void CudaBackend::synchronize() { KINTSUGI_CUDA(cudaStreamSynchronize(stream())); }

void CudaBackend::replay(std::uint64_t key, const std::function<void()>& calls) {
  if (options_.graphs && !traces())  // a trace would not see what a graph does
    graphs_.run(key, calls, stream());
  else
    calls();
}

std::size_t CudaBackend::available_host_bytes() const { return free_memory(); }

Backend::Transfer CudaBackend::start_transfer(Transfers::Direction direction, const Tensor& to,
                                              const Tensor& from) {
  KINTSUGI_CHECK(to.bytes() == from.bytes() && to.contiguous() && from.contiguous(),
                 "a transfer of {} to {} bytes", from.bytes(), to.bytes());
  return transfers_.start(direction, to.data(), from.data(), to.bytes(), stream());
}

Backend::Transfer CudaBackend::to_device(Tensor device, Tensor host) {
  return start_transfer(Transfers::Direction::ToDevice, device, host);
}

Backend::Transfer CudaBackend::to_host(Tensor host, Tensor device) {
  return start_transfer(Transfers::Direction::ToHost, host, device);
}

void CudaBackend::fill(Tensor x, double value) {
  if (host_memory_.contains(x.data())) {
    synchronize();
    return HostMemory::fill(x, value);
  }
  const auto span = timer_.span([&] {
    return operation_span("fill",
                          {.work = WorkKind::Memory, .bytes = static_cast<double>(x.bytes())});
  });
  cuda::fill(context_, x, value);
}

}  // namespace cuda
}  // namespace kintsugi
