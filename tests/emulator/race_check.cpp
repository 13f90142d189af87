#include "emulator/race_check.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "emulator/executor.h"
#include "emulator/shared_memory.h"

namespace kintsugi::emulator::race_check {
namespace {

// Who touched a byte, and when. Block 0: nobody. Numbers of blocks are unique in the process, so
// that what a launch leaves behind does not concern the next one.
struct Access {
  std::uint32_t block = 0;
  std::uint32_t thread : 10 = 0, time : 22 = 0;
};
static_assert(sizeof(Access) == 8);

enum class Mode : std::uint8_t { Read, Write, Atomic };

// Accesses that do not conflict with each other. Two by different threads suffice: a thread that
// conflicts with them later differs from at least one.
struct Harmless {
  Access last, other;
};

struct Byte {
  Access writer;
  Harmless readers, updaters;  // updaters: by atomics
};

struct Region {
  const std::byte* begin;
  std::size_t bytes;
  std::string name;
  Kind kind;
  Byte* shadow;  // one for each byte; pages exist once they are used
};

std::atomic<bool> instrumented{false};

struct State {
  std::mutex mutex;
  std::map<const std::byte*, Region> regions;  // by their first address
};

State& state() {
  static auto* const state = new State;  // never destroyed: backends of tests live until the end
  return *state;
}

// The first race of this thread's launch, in words. While the check is active, launches run on the
// thread that makes them.
thread_local std::string race;

Region* find(State& s, const std::byte* address) {
  auto after = s.regions.upper_bound(address);
  if (after == s.regions.begin()) return nullptr;
  Region& region = std::prev(after)->second;
  return address < region.begin + region.bytes ? &region : nullptr;
}

// The two accesses may happen in either order.
bool unordered(const Access& before, const Moment& now, Kind kind) {
  if (before.block == 0) return false;
  if (before.block != now.block) {
    // Another block had this shared memory before.
    return kind == Kind::DeviceMemory && before.block - now.first_block < now.blocks;
  }
  if (before.thread == now.thread) return false;
  return before.time >= ordered_until(before.thread);
}

std::string describe(const Region& region, const std::byte* byte) {
  if (region.kind == Kind::SharedMemory) return shared_memory().name_of(byte);
  return fmt::format("byte {} of {}", byte - region.begin, region.name);
}

// An address of the program as addr2line -e PROGRAM wants it.
std::string code_at(const void* address) {
  Dl_info info{};
  if (address == nullptr || ::dladdr(address, &info) == 0) return "unknown code";
  return fmt::format("{}+{:#x}", info.dli_fname,
                     static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase));
}

std::string describe(const Access& access, const Moment& now) {
  if (access.block == now.block) return name_of_thread(access.thread);
  return fmt::format("thread number {} of block number {}", access.thread,
                     access.block - now.first_block);
}

const char* verb(Mode mode) {
  switch (mode) {
    case Mode::Read:
      return "reads";
    case Mode::Write:
      return "writes";
    case Mode::Atomic:
      return "atomically updates";
  }
  return "";
}

void check_bytes(const std::byte* first, std::size_t bytes, Mode mode, const void* code) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Region* region = find(s, first);
  if (region == nullptr) return;
  const Moment now = emulator::now();
  const Access mine{now.block, now.thread, now.time};
  const auto offset = static_cast<std::size_t>(first - region->begin);
  for (std::size_t i = offset; i < std::min(offset + bytes, region->bytes); ++i) {
    Byte& byte = region->shadow[i];
    const auto conflict = [&](const Access& before, const char* did) {
      if (!race.empty() || !unordered(before, now, region->kind)) return;
      race =
          fmt::format("race: {} {} {} ({}), which {} {}, without a barrier between them",
                      name_of_thread(now.thread), verb(mode), describe(*region, region->begin + i),
                      code_at(code), describe(before, now), did);
    };
    conflict(byte.writer, "wrote");
    if (mode != Mode::Read) {
      conflict(byte.readers.last, "read");
      conflict(byte.readers.other, "read");
    }
    if (mode != Mode::Atomic) {
      conflict(byte.updaters.last, "atomically updated");
      conflict(byte.updaters.other, "atomically updated");
    }
    if (mode == Mode::Write) {
      byte.writer = mine;
    } else {
      Harmless& same = mode == Mode::Read ? byte.readers : byte.updaters;
      (unordered(same.last, now, region->kind) ? same.other : same.last) = mine;
    }
  }
}

// True while this thread is in check(), which may itself call instrumented code: the linker keeps
// one copy of an inline function of the standard library, and it may be that of a kernel.
thread_local bool checking = false;

void check(const void* address, std::size_t bytes, Mode mode, const void* code) {
  if (checking || !inside_kernel()) return;
  checking = true;
  check_bytes(static_cast<const std::byte*>(address), bytes, mode, code);
  checking = false;
}

}  // namespace

bool active() { return instrumented; }

void register_memory(const void* address, std::size_t bytes, std::string name, Kind kind) {
  if (!active() || bytes == 0) return;
  void* shadow = ::mmap(nullptr, bytes * sizeof(Byte), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KINTSUGI_CHECK(shadow != MAP_FAILED, "no memory for the race check of {} bytes", bytes);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto* begin = static_cast<const std::byte*>(address);
  s.regions[begin] = {begin, bytes, std::move(name), kind, static_cast<Byte*>(shadow)};
}

void forget_memory(const void* address) {
  if (!active()) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto at = s.regions.find(static_cast<const std::byte*>(address));
  if (at == s.regions.end()) return;
  ::munmap(at->second.shadow, at->second.bytes * sizeof(Byte));
  s.regions.erase(at);
}

void on_read(const void* address, std::size_t bytes) {
  if (active()) check(address, bytes, Mode::Read, __builtin_return_address(0));
}
void on_write(const void* address, std::size_t bytes) {
  if (active()) check(address, bytes, Mode::Write, __builtin_return_address(0));
}

void begin_launch() { race.clear(); }

void end_launch() {
  if (!race.empty()) throw Failure(std::exchange(race, {}));
}

}  // namespace kintsugi::emulator::race_check

// ---- what code compiled with -fsanitize=thread calls
namespace {

using kintsugi::emulator::race_check::check;
using kintsugi::emulator::race_check::instrumented;
using kintsugi::emulator::race_check::Mode;

}  // namespace

#define KINTSUGI_ACCESS(name, bytes, mode)                          \
  void __tsan_##name(void* address) {                               \
    check(address, bytes, Mode::mode, __builtin_return_address(0)); \
  }
#define KINTSUGI_ACCESSES(bytes)                        \
  KINTSUGI_ACCESS(read##bytes, bytes, Read)             \
  KINTSUGI_ACCESS(write##bytes, bytes, Write)           \
  KINTSUGI_ACCESS(unaligned_read##bytes, bytes, Read)   \
  KINTSUGI_ACCESS(unaligned_write##bytes, bytes, Write) \
  KINTSUGI_ACCESS(volatile_read##bytes, bytes, Read)    \
  KINTSUGI_ACCESS(volatile_write##bytes, bytes, Write)

// An atomic access of the name that the compiler calls: its result, arguments and the expression
// that does it.
#define KINTSUGI_ATOMIC(result, name, arguments, expression)                                       \
  result __tsan_atomic##name arguments {                                                           \
    check(const_cast<const void*>(static_cast<const volatile void*>(p)), sizeof(*p), Mode::Atomic, \
          __builtin_return_address(0));                                                            \
    return expression;                                                                             \
  }
#define KINTSUGI_FETCH(bits, type, operation)                                       \
  KINTSUGI_ATOMIC(type, bits##_fetch_##operation, (volatile type * p, type x, int), \
                  __atomic_fetch_##operation(p, x, __ATOMIC_SEQ_CST))
#define KINTSUGI_COMPARE_EXCHANGE(bits, type, strength, weak) \
  KINTSUGI_ATOMIC(                                            \
      int, bits##_compare_exchange_##strength,                \
      (volatile type * p, type * expected, type x, int, int), \
      __atomic_compare_exchange_n(p, expected, x, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define KINTSUGI_ATOMICS(bits, type)                                                            \
  KINTSUGI_ATOMIC(type, bits##_load, (const volatile type* p, int),                             \
                  __atomic_load_n(p, __ATOMIC_SEQ_CST))                                         \
  KINTSUGI_ATOMIC(void, bits##_store, (volatile type * p, type x, int),                         \
                  __atomic_store_n(p, x, __ATOMIC_SEQ_CST))                                     \
  KINTSUGI_ATOMIC(type, bits##_exchange, (volatile type * p, type x, int),                      \
                  __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST))                                  \
  KINTSUGI_ATOMIC(                                                                              \
      type, bits##_compare_exchange_val, (volatile type * p, type expected, type x, int, int),  \
      (__atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST), \
       expected))                                                                               \
  KINTSUGI_COMPARE_EXCHANGE(bits, type, strong, false)                                          \
  KINTSUGI_COMPARE_EXCHANGE(bits, type, weak, true)                                             \
  KINTSUGI_FETCH(bits, type, add)                                                               \
  KINTSUGI_FETCH(bits, type, sub)                                                               \
  KINTSUGI_FETCH(bits, type, and)                                                               \
  KINTSUGI_FETCH(bits, type, or)                                                                \
  KINTSUGI_FETCH(bits, type, xor)                                                               \
  KINTSUGI_FETCH(bits, type, nand)

extern "C" {

void __tsan_init() { instrumented = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

KINTSUGI_ACCESSES(1)
KINTSUGI_ACCESSES(2)
KINTSUGI_ACCESSES(4)
KINTSUGI_ACCESSES(8)
KINTSUGI_ACCESSES(16)
KINTSUGI_ACCESS(vptr_read, sizeof(void*), Read)
void __tsan_vptr_update(void** address, void*) {
  check(address, sizeof(void*), Mode::Write, __builtin_return_address(0));
}
void __tsan_read_range(void* address, unsigned long bytes) {
  check(address, bytes, Mode::Read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, unsigned long bytes) {
  check(address, bytes, Mode::Write, __builtin_return_address(0));
}

void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  check(from, bytes, Mode::Read, __builtin_return_address(0));
  check(to, bytes, Mode::Write, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
  check(from, bytes, Mode::Read, __builtin_return_address(0));
  check(to, bytes, Mode::Write, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  check(to, bytes, Mode::Write, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

KINTSUGI_ATOMICS(8, std::uint8_t)
KINTSUGI_ATOMICS(16, std::uint16_t)
KINTSUGI_ATOMICS(32, std::uint32_t)
KINTSUGI_ATOMICS(64, std::uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

}  // extern "C"
