#include "backend/cuda/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_common.h"
#include "core/free_memory.h"
#include "core/units.h"

namespace kintsugi::cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGrain = std::size_t{64} << 20;  // worth a thread

std::size_t whole_pages(std::size_t bytes) {
  return ceil_div(std::max<std::size_t>(bytes, 1), kPage) * kPage;
}

// f(begin, end) over parts of [0, n), at least `grain` long.
template <class F>
void on_threads(std::size_t n, std::size_t grain, const F& f) {
  const std::size_t parts = std::clamp<std::size_t>(
      n / grain, 1, std::max<std::size_t>(1, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::size_t part = 1; part < parts; ++part)
    threads.emplace_back([&f, n, part, parts] { f(n * part / parts, n * (part + 1) / parts); });
  f(0, n / parts);
  for (std::thread& thread : threads) thread.join();
}

[[noreturn]] void no_memory(std::size_t bytes, const char* reason) {
  failure("no page-locked host memory for {} (about {} is free): {}",
          format_bytes(static_cast<double>(bytes)),
          format_bytes(static_cast<double>(free_memory())), reason);
}

}  // namespace

// Pages are taken here, by many threads at once and in large ones where the system has them: the
// driver would take them one after the other.
void* HostMemory::allocate(std::size_t bytes) {
  const std::size_t length = whole_pages(bytes);
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) no_memory(bytes, std::strerror(errno));
  madvise(address, length, MADV_HUGEPAGE);  // a wish
  auto* first = static_cast<volatile std::byte*>(address);
  on_threads(length / kPage, kGrain / kPage, [&](std::size_t begin, std::size_t end) {
    for (std::size_t page = begin; page < end; ++page) first[page * kPage] = std::byte{0};
  });
  const cudaError_t status = cudaHostRegister(address, length, cudaHostRegisterPortable);
  if (status != cudaSuccess) {
    cudaGetLastError();
    munmap(address, length);
    no_memory(bytes, cudaGetErrorString(status));
  }
  blocks_[static_cast<const std::byte*>(address)] = length;
  return address;
}

void HostMemory::release(void* address, std::size_t bytes) noexcept {
  cudaDeviceSynchronize();  // nothing may still be on its way there
  cudaHostUnregister(address);
  munmap(address, whole_pages(bytes));
  blocks_.erase(static_cast<const std::byte*>(address));
}

bool HostMemory::contains(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  const auto after = blocks_.upper_bound(at);
  if (after == blocks_.begin()) return false;
  const auto& [begin, length] = *std::prev(after);
  return at < begin + length;
}

void HostMemory::fill(const Tensor& x, double value) {
  KINTSUGI_CHECK(x.contiguous(), "a strided tensor in host memory");
  visit_float(x.dtype(), [&]<class T>() {
    const T stored = static_cast<T>(static_cast<Accumulator<T>>(value));
    on_threads(static_cast<std::size_t>(x.elements()), kGrain / sizeof(T),
               [&](std::size_t begin, std::size_t end) {
                 std::fill(x.as<T>() + begin, x.as<T>() + end, stored);
               });
  });
}

}  // namespace kintsugi::cuda
