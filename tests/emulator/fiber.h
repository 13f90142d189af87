#pragma once

#include <cstddef>

// A stack on which a computation can stop and be continued later, always by the thread of the
// processor that began it.
namespace kintsugi::emulator {

class Fiber {
 public:
  Fiber() = default;  // the stack that the caller runs on
  // A new stack. The first switch calls entry(argument), which must never return.
  Fiber(void (*entry)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Stops this fiber, which must be the one that runs, and continues `to`. Returns when some fiber
  // switches back to this one.
  void switch_to(Fiber& to);

 private:
  static void arrive(Fiber& from, Fiber& to, void* context_of_from);

  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* mapping_ = nullptr;      // the guard page, then the stack; nullptr: not our stack
  const void* stack_ = nullptr;  // its lowest address
  std::size_t stack_bytes_ = 0;  // without the guard page
  void* context_ = nullptr;      // the stored registers, while it does not run
  void* fake_stack_ = nullptr;   // of the address sanitizer
};

}  // namespace kintsugi::emulator
