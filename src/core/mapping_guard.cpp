#include "core/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace kintsugi {
namespace {

// A fixed table, since a signal handler reads it. It has more slots than the system allows mappings
// per process by default (vm.max_map_count). A mapping without a slot is not guarded.
constexpr int kSlots = 1 << 16;
struct Slot {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // begin 0: free
  std::atomic<bool> cut{false};
};
std::array<Slot, kSlots> slots;
std::atomic<int> used_slots{0};  // highest slot ever used, plus one

std::mutex mutex;             // guards free_slots and previous
std::vector<int> free_slots;  // below used_slots
struct sigaction previous {};
std::atomic<bool> passing_on{false};

// Maps zeros from the page of `address` to the end of its mapping. Async-signal-safe.
bool cover(std::uintptr_t address) {
  const int count = used_slots.load();
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (int i = 0; i < count; ++i) {
    Slot& slot = slots[static_cast<std::size_t>(i)];
    const std::uintptr_t begin = slot.begin.load(), end = slot.end.load();
    if (begin == 0 || address < begin || address >= end) continue;
    slot.cut.store(true);
    const std::uintptr_t from = address / page * page;
    return ::mmap(reinterpret_cast<void*>(from), end - from, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

// The address is in none of our mappings: call the previous handler. A second call from inside it
// is fatal, so that two handlers cannot call each other forever.
void pass_on(int signal, siginfo_t* info, void* context) {
  const bool again = passing_on.exchange(true);
  if (!again && (previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, info, context);
  } else if (!again && previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  passing_on.store(false);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (!cover(reinterpret_cast<std::uintptr_t>(info->si_addr))) pass_on(signal, info, context);
  errno = error;
}

// Called for every mapping, because a library loaded later (MPI's network layer) may have replaced
// our handler.
void install() {
  struct sigaction now {};
  if (::sigaction(SIGBUS, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_bus_error) return;
  previous = now;
  struct sigaction ours {};
  ours.sa_sigaction = &on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

MappingGuard::MappingGuard(const void* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  install();
  if (!free_slots.empty()) {
    slot_ = free_slots.back();
    free_slots.pop_back();
  } else if (used_slots.load() < kSlots) {
    slot_ = used_slots.load();
  } else {
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  Slot& slot = slots[static_cast<std::size_t>(slot_)];
  slot.cut.store(false);
  slot.end.store(address + bytes);
  slot.begin.store(address);
  if (slot_ == used_slots.load()) used_slots.store(slot_ + 1);
}

MappingGuard::~MappingGuard() {
  if (slot_ < 0) return;
  const std::lock_guard lock(mutex);
  slots[static_cast<std::size_t>(slot_)].begin.store(0);
  free_slots.push_back(slot_);
}

MappingGuard::MappingGuard(MappingGuard&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

MappingGuard& MappingGuard::operator=(MappingGuard&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

bool MappingGuard::cut() const {
  return slot_ >= 0 && slots[static_cast<std::size_t>(slot_)].cut.load(std::memory_order_relaxed);
}

}  // namespace kintsugi
