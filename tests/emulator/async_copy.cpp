#include "emulator/async_copy.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "emulator/executor.h"
#include "emulator/race_check.h"

namespace kintsugi::emulator {
namespace {

constexpr std::size_t kBytes = 16;

struct Copy {
  void* to;
  const void* from;  // nullptr: zeros
};

// The copies of one thread that are under way.
struct Copies {
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;  // the group that is not committed yet
};

// Those of all threads of the block that this core runs.
Copies& copies_of_thread() {
  thread_local std::uint32_t block = 0;
  thread_local std::vector<Copies> threads;
  const Moment moment = now();
  if (block != moment.block) {
    block = moment.block;
    threads.assign(kMaxThreads, {});
  }
  return threads[moment.thread];
}

void arrive(const Copy& copy) {
  race_check::on_write(copy.to, kBytes);
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, kBytes);
  } else {
    race_check::on_read(copy.from, kBytes);
    std::memcpy(copy.to, copy.from, kBytes);
  }
}

}  // namespace

void copy_async(void* to, const void* from, bool present) {
  if (reinterpret_cast<std::uintptr_t>(to) % kBytes != 0 ||
      (present && reinterpret_cast<std::uintptr_t>(from) % kBytes != 0))
    failure("an asynchronous copy that does not start at a multiple of {} bytes", kBytes);
  race_check::on_write(to, kBytes);
  std::memset(to, 0xff, kBytes);
  copies_of_thread().open.push_back({to, present ? from : nullptr});
}

void commit_copies() {
  Copies& copies = copies_of_thread();
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}

void wait_for_copies(int left) {
  Copies& copies = copies_of_thread();
  while (copies.groups.size() > static_cast<std::size_t>(left)) {
    for (const Copy& copy : copies.groups.front()) arrive(copy);
    copies.groups.erase(copies.groups.begin());
  }
}

}  // namespace kintsugi::emulator
