#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>

#include "backend/cpu/blas.h"
#include "backend/cpu/cpu_backend_impl.h"
#include "core/host/free_memory.h"
#include "core/host/usable_cores.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  constexpr int kMaxThreads = 1024;
  if (threads > kMaxThreads) user_error("threads is {}; the maximum is {}", threads, kMaxThreads);
  return std::make_unique<CpuBackend>(threads > 0 ? threads : usable_cores());
}

CpuBackend::CpuBackend(int threads)
    : pool_(threads), scratch_(static_cast<std::size_t>(pool_.threads())) {
  use_one_blas_thread();
  check_blas_buffers(pool_.threads());
}

void* CpuBackend::allocate(std::size_t bytes) {
  void* address = ::operator new(bytes, std::align_val_t(kAlignment), std::nothrow);
  if (address == nullptr)
    failure("cannot allocate {} of memory (about {} is free on this machine)",
            format_bytes(static_cast<double>(bytes)),
            format_bytes(static_cast<double>(available_bytes())));
  return address;
}

void CpuBackend::release(void* address, std::size_t) noexcept {
  ::operator delete(address, std::align_val_t(kAlignment));
}

std::string CpuBackend::description() const {
  const std::string_view faster = faster_blas_core();
  return fmt::format("cpu: {} thread{}, OpenBLAS on {}{}", pool_.threads(),
                     pool_.threads() == 1 ? "" : "s", blas_core_name(),
                     faster.empty() ? "" : fmt::format(" (faster: OPENBLAS_CORETYPE={})", faster));
}

Backend::Peak CpuBackend::peak_flops(DType dtype) {
  // The best rate of many short matmuls, because clocks change and cores are shared. Small ones end
  // before other work takes the core; large ones keep many threads busy.
  constexpr std::array<std::int64_t, 4> kSizes = {128, 256, 512, 1024};
  constexpr double kSeconds = 0.015;  // for each size: every run waits for it
  const DType type = accumulator_of(dtype);
  Arena arena(*this);
  const std::int64_t largest = kSizes.back();
  const Tensor a = arena.allocate(Region::Workspace, "peak", type, {largest, largest});
  const Tensor b = arena.allocate(Region::Workspace, "peak", type, {largest, largest});
  const Tensor c = arena.allocate(Region::Workspace, "peak", type, {largest, largest});
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds = [](auto begin, auto end) {
    return std::chrono::duration<double>(end - begin).count();
  };
  double best = 0;
  for (const std::int64_t n : kSizes) {
    const auto square = [n](Tensor x) { return x.rows(0, n * n / x.extent(1)).view({n, n}); };
    const double flops = 2.0 * static_cast<double>(n * n * n);
    if (best > 0 && flops / best > kSeconds) break;
    fill(square(a), 1.0);
    fill(square(b), 1.0);
    for (const auto begin = now(); seconds(begin, now()) < kSeconds;) {
      const auto start = now();
      matmul(square(c), square(a), square(b), {});
      best = std::max(best, flops / seconds(start, now()));
    }
  }
  return {best, fmt::format("measured {} matmul", to_string(type))};
}

// The best of several copies that are larger than most caches.
Backend::DeviceFacts CpuBackend::device_facts() {
  constexpr std::int64_t kElements = std::int64_t{1} << 24;
  constexpr int kCopies = 6;
  if (available_bytes() / 4 < 2 * sizeof(float) * kElements) return {};
  Arena arena(*this);
  const Tensor a = arena.allocate(Region::Workspace, "bandwidth", DType::F32, {kElements});
  const Tensor b = arena.allocate(Region::Workspace, "bandwidth", DType::F32, {kElements});
  fill(a, 1.0);
  double shortest_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kCopies; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    copy(b, a);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    shortest_s = std::min(shortest_s, elapsed.count());
  }
  return {.memory_bytes_per_s = static_cast<double>(a.bytes() + b.bytes()) / shortest_s};
}

// Subtracts what this backend will use itself. Of physical memory, that is the touched part of the
// BLAS buffers. Of a limit on the address space (ulimit -v), it is the whole buffers, and kRest for
// what no plan counts: thread stacks and heaps, files.
std::size_t CpuBackend::available_bytes() const {
  constexpr std::size_t kRest = std::size_t{128} << 20;
  const auto threads = static_cast<std::size_t>(pool_.threads());
  const auto without = [](std::size_t bytes, std::size_t taken) {
    return bytes - std::min(bytes, taken);
  };
  const std::size_t within = free_address_space();
  return std::min(
      without(free_memory(), threads * kBlasTouched),
      within == kUnlimited ? kUnlimited : without(within, threads * kBlasBuffer + kRest));
}

std::size_t CpuBackend::own_bytes() const {
  std::size_t bytes = partials_.size() + scratch_.size() * kBlasTouched;
  for (const auto& buffer : scratch_) bytes += buffer.size();
  for (const auto& buffer : gathered_) bytes += buffer.size();
  return bytes;
}

void CpuBackend::upload(Tensor destination, const void* source) {
  KINTSUGI_CHECK(destination.contiguous(), "upload into a strided tensor");
  if (destination.bytes() == 0) return;  // memcpy takes no null pointer
  std::memcpy(destination.data(), source, destination.bytes());
}

void CpuBackend::download(void* destination, Tensor source) {
  KINTSUGI_CHECK(source.contiguous(), "download of a strided tensor");
  if (source.bytes() == 0) return;
  std::memcpy(destination, source.data(), source.bytes());
}

// Host and device memory are the same here: the copy is done when the call returns.
Backend::Transfer CpuBackend::to_device(Tensor device, Tensor host) {
  KINTSUGI_CHECK(device.bytes() == host.bytes() && device.contiguous() && host.contiguous(),
                 "transfer of {} bytes into {} bytes", host.bytes(), device.bytes());
  std::memcpy(device.data(), host.data(), host.bytes());
  return {};
}

Backend::Transfer CpuBackend::to_host(Tensor host, Tensor device) {
  return to_device(host, device);
}

}  // namespace kintsugi
