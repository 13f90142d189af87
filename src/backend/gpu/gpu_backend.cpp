#include "backend/gpu/gpu_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/gpu/gpu_backend_impl.h"
#include "backend/gpu/libraries.h"
#include "backend/gpu/peaks.h"
#include "backend/gpu/self_check.h"
#include "core/host/free_memory.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// Tuning of matmuls depends on timing: a deterministic run may tune only if the choices are stored.
bool may_tune(const GpuOptions& options) {
  return !options.deterministic || !options.matmul_cache.empty();
}

}  // namespace

std::string gpu_platform() { return gpu::platform(); }
int gpu_device_count() { return gpu::device_count(); }

std::vector<Device> gpu_devices() {
  std::vector<Device> devices;
  for (int i = 0; i < gpu_device_count(); ++i) {
    try {
      devices.push_back(gpu::device_at(i));
    } catch (const Failure&) {  // it is not usable
    }
  }
  return devices;
}

std::unique_ptr<Backend> make_gpu_backend(const GpuOptions& options) {
  if (const std::string why = gpu::why_no_device(); !why.empty())
    user_error("{}, or set device: cpu", why);
  const int count = gpu::device_count();
  if (options.device < 0 || options.device >= count)
    user_error("there is no GPU {}: this machine has {}, counted from 0", options.device, count);
  if (const std::string why = gpu::why_unsupported(options.device); !why.empty())
    user_error("{}; set device: cpu", why);
  gpu::select_device(options.device);
  auto backend = std::make_unique<gpu::GpuBackend>(options);
  if (gpu::traits_of(options.device).checks_libraries) backend->check_libraries();
  return backend;
}

namespace gpu {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

}  // namespace

OwnStream::OwnStream() : stream_(create_stream()) {}
OwnStream::~OwnStream() { destroy(stream_); }

Staging::Staging() {
  for (Slot& slot : slots_) {
    slot.address = try_allocate_host(kSlotBytes);
    KINTSUGI_CHECK(slot.address != nullptr, "no page-locked memory for uploads is left");
    slot.done = create_event(Timing::Off);
  }
}

Staging::~Staging() {
  for (const Slot& slot : slots_) {
    destroy(slot.done);
    release_host(slot.address);
  }
}

void Staging::upload(void* destination, const void* source, std::size_t bytes, Stream stream) {
  for (std::size_t begin = 0; begin < bytes; begin += kSlotBytes) {
    const std::size_t length = std::min(kSlotBytes, bytes - begin);
    const Slot& slot = slots_[next_++ % slots_.size()];
    synchronize(slot.done);
    std::memcpy(slot.address, static_cast<const std::byte*>(source) + begin, length);
    gpu::copy(static_cast<std::byte*>(destination) + begin, slot.address, length, Copy::ToDevice,
              stream);
    record(slot.done, stream);
  }
}

GpuBackend::GpuBackend(const GpuOptions& options)
    : options_(options),
      device_(device_at(options.device)),
      traits_(traits_of(options.device)),
      workspace_(kWorkspaceBytes),
      context_{stream_.get(),      traits_.multiprocessors,  workspace_, matmul_, attention_,
               traits_.warpgroups, traits_.overlaps_launches},
      matmul_({.tf32 = options.tf32,
               .tune = may_tune(options),
               .cache_file = options.matmul_cache,
               .gpu = device_.name}),
      timer_(stream_.get(), options.trace) {
  device_.stream = stream_.get();
  attention_.set_deterministic(options.deterministic);
  if (options.time_operations) timer_.switch_on();
}

GpuBackend::~GpuBackend() { drain(stream()); }

void GpuBackend::check_libraries() {
  if (const std::string wrong = wrong_matmul(*this); !wrong.empty())
    user_error("{} computes wrongly: {}; use another release of its libraries, and tell us",
               description(), wrong);
  const AttentionCheck found = check_attention(*this, attention_);
  if (found.wrong.empty()) {
    attention_library_ = found.library;
    return;
  }
  log_warning("attention runs on the portable kernel, which is slower: {}", found.wrong);
  attention_.set_choice(AttentionChoice::Portable);
}

void* GpuBackend::allocate(std::size_t bytes) { return device_allocate(bytes); }
void GpuBackend::release(void* address, std::size_t) noexcept {
  gpu::release(address);  // waits for the device
  graphs_.forget_all();
}

std::string GpuBackend::description() const {
  return fmt::format("{}:{}: {}, {} ({}, {}), {}", platform(), device_.index, device_.name,
                     format_bytes(static_cast<double>(device_.memory_bytes)), device_.uuid,
                     device_.pci, matmul_.library()) +
         (attention_library_.empty() ? "" : ", " + attention_library_);
}

Backend::Peak GpuBackend::peak_flops(DType dtype) {
  const std::string unit =
      options_.tf32 && dtype == DType::F32 ? "TF32" : std::string(to_string(dtype));
  if (const auto known = known_peak_flops(device_.name, dtype, options_.tf32))
    return {*known, fmt::format("data sheet of {}, dense {}", device_.name, unit)};
  if (dtype == DType::F8) return {0, fmt::format("no known fp8 rate of {}", device_.name)};
  return {measure_flops(dtype), fmt::format("measured {} matmul", unit)};
}

Backend::DeviceFacts GpuBackend::device_facts() {
  return {.memory_bytes_per_s = traits_.memory_bytes_per_s,
          .multiprocessors = traits_.multiprocessors};
}

std::string GpuBackend::why_no_fp8(bool one_scale) const {
  return gpu::why_no_fp8(device_, traits_, one_scale);
}

double GpuBackend::measure_flops(DType dtype) {
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
  const Event begin = create_event(), end = create_event();
  for (int round = 0; round < 3; ++round) {
    matmul(c, a, b, {});  // the first one chooses an algorithm
    record(begin, stream());
    for (int i = 0; i < kRepetitions; ++i) matmul(c, a, b, {});
    record(end, stream());
    gpu::synchronize(end);
    best_ms = std::min(best_ms, elapsed_ms(begin, end) / kRepetitions);
  }
  destroy(begin);
  destroy(end);
  const double side = static_cast<double>(n);
  return 2 * side * side * side / (best_ms * 1e-3);
}

// Reserves memory for what every run allocates later: the libraries' kernels, graphs and
// events, 0.2 to 0.35 GiB on an H200. The device's context exists already. library_memory.h
// estimates what depends on the configuration.
std::size_t GpuBackend::available_bytes() const {
  constexpr std::size_t kLibraries = std::size_t{400} << 20;
  const std::size_t free = memory_info().free;
  return free - std::min(free, kLibraries);
}

std::size_t GpuBackend::own_bytes() const {
  return workspace_.bytes() + matmul_.own_bytes() + attention_.own_bytes();
}

// 512 MiB in bf16: enough for two thousand tokens or more, whose matmuls fill the device.
std::int64_t GpuBackend::classifier_elements() const { return std::int64_t{1} << 28; }

void GpuBackend::upload(Tensor destination, const void* source) {
  KINTSUGI_CHECK(destination.contiguous(), "upload into a strided tensor");
  KINTSUGI_CHECK(!is_capturing(stream()), "upload while a graph is captured");
  if (host_memory_.contains(destination.data())) {
    synchronize();
    std::memcpy(destination.data(), source, destination.bytes());
    return;
  }
  staging_.upload(destination.data(), source, destination.bytes(), stream());
}

void GpuBackend::download(void* destination, Tensor source) {
  KINTSUGI_CHECK(source.contiguous(), "download of a strided tensor");
  if (host_memory_.contains(source.data())) {
    synchronize();
    std::memcpy(destination, source.data(), source.bytes());
    return;
  }
  gpu::copy(destination, source.data(), source.bytes(), Copy::ToHost, stream());
  synchronize();
}

void GpuBackend::synchronize() { gpu::synchronize(stream()); }

void GpuBackend::replay(std::uint64_t key, const std::function<void()>& calls) {
  const bool replays = options_.graphs.value_or(traits_.reliable_graphs);
  if (replays && !traces())  // a trace would not see what a graph does
    graphs_.run(key, calls, stream());
  else
    calls();
}

std::size_t GpuBackend::available_host_bytes() const { return free_memory(); }

Backend::Transfer GpuBackend::start_transfer(Transfers::Direction direction, const Tensor& to,
                                             const Tensor& from) {
  KINTSUGI_CHECK(to.bytes() == from.bytes() && to.contiguous() && from.contiguous(),
                 "a transfer of {} to {} bytes", from.bytes(), to.bytes());
  return transfers_.start(direction, to.data(), from.data(), to.bytes(), stream());
}

Backend::Transfer GpuBackend::to_device(Tensor device, Tensor host) {
  return start_transfer(Transfers::Direction::ToDevice, device, host);
}

Backend::Transfer GpuBackend::to_host(Tensor host, Tensor device) {
  return start_transfer(Transfers::Direction::ToHost, host, device);
}

void GpuBackend::fill(Tensor x, double value) {
  if (host_memory_.contains(x.data())) {
    synchronize();
    return HostMemory::fill(x, value);
  }
  const auto span = timer_.span([&] {
    return operation_span("fill",
                          {.work = WorkKind::Memory, .bytes = static_cast<double>(x.bytes())});
  });
  gpu::fill(context_, x, value);
}

}  // namespace gpu
}  // namespace kintsugi
