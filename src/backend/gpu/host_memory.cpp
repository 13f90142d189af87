#include "backend/gpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <vector>

#include "backend/gpu/common.h"
#include "core/host/free_memory.h"
#include "core/units.h"

namespace kintsugi::gpu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGrain = std::size_t{64} << 20;  // minimum bytes per thread

std::size_t whole_pages(std::size_t bytes) {
  return ceil_div(std::max<std::size_t>(bytes, 1), kPage) * kPage;
}

// Splits [0, n) into ranges of at least `grain` and calls f(begin, end) for each on its own thread.
template <class F>
void on_threads(std::size_t n, std::size_t grain, const F& f) {
  const std::size_t ranges = std::clamp<std::size_t>(
      n / grain, 1, std::max<std::size_t>(1, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::size_t range = 1; range < ranges; ++range)
    threads.emplace_back(
        [&f, n, range, ranges] { f(n * range / ranges, n * (range + 1) / ranges); });
  f(0, n / ranges);
  for (std::thread& thread : threads) thread.join();
}

[[noreturn]] void no_memory(std::size_t bytes, const char* reason) {
  failure("cannot allocate {} of page-locked host memory (about {} is free): {}",
          format_bytes(static_cast<double>(bytes)),
          format_bytes(static_cast<double>(free_memory())), reason);
}

// Maps memory, touches its pages on many threads (as huge pages where the system has them), and
// locks them: the driver would allocate them on one thread. Returns nullptr if they cannot be
// locked.
void* map_and_lock(std::size_t length) {
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  madvise(address, length, MADV_HUGEPAGE);  // only a hint
  auto* first = static_cast<volatile std::byte*>(address);
  on_threads(length / kPage, kGrain / kPage, [&](std::size_t begin, std::size_t end) {
    for (std::size_t page = begin; page < end; ++page) first[page * kPage] = std::byte{0};
  });
  if (try_lock(address, length)) return address;
  munmap(address, length);
  return nullptr;
}

}  // namespace

void* HostMemory::allocate(std::size_t bytes) {
  const std::size_t length = whole_pages(bytes);
  if (length > free_memory()) no_memory(bytes, "not enough memory");
  void* address = map_and_lock(length);
  const bool mapped = address != nullptr;
  if (!mapped) {
    address = try_allocate_host(length);
    if (address == nullptr) no_memory(bytes, "the driver cannot lock it");
  }
  blocks_[static_cast<const std::byte*>(address)] = {length, mapped};
  return address;
}

void HostMemory::release(void* address, std::size_t) noexcept {
  const auto found = blocks_.find(static_cast<const std::byte*>(address));
  if (found == blocks_.end()) return;
  drain_device();  // copies from or to this memory may still be running
  if (found->second.mapped) {
    unlock(address);
    munmap(address, found->second.bytes);
  } else {
    release_host(address);
  }
  blocks_.erase(found);
}

bool HostMemory::contains(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  const auto after = blocks_.upper_bound(at);
  if (after == blocks_.begin()) return false;
  const auto& [begin, block] = *std::prev(after);
  return at < begin + block.bytes;
}

void HostMemory::fill(const Tensor& x, double value) {
  KINTSUGI_CHECK(x.contiguous(), "fill of a strided tensor in host memory");
  visit_float(x.dtype(), [&]<class T>() {
    const T stored = static_cast<T>(static_cast<Accumulator<T>>(value));
    on_threads(static_cast<std::size_t>(x.elements()), kGrain / sizeof(T),
               [&](std::size_t begin, std::size_t end) {
                 std::fill(x.as<T>() + begin, x.as<T>() + end, stored);
               });
  });
}

}  // namespace kintsugi::gpu
