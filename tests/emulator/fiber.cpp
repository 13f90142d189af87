#include "emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>

#include "core/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace kintsugi::emulator {
namespace {

namespace context = boost::context::detail;

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 512 * 1024;  // red zones make frames several times larger
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

// What a switch hands over to the fiber that it continues.
struct Handover {
  Fiber* from;
  Fiber* to;
};

}  // namespace

Fiber::Fiber(void (*entry)(void*), void* argument) : entry_(entry), argument_(argument) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  stack_bytes_ = kStackBytes;
  mapping_ = ::mmap(nullptr, page + stack_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KINTSUGI_CHECK(mapping_ != MAP_FAILED, "no memory for the stack of a fiber");
  KINTSUGI_CHECK(::mprotect(mapping_, page, PROT_NONE) == 0, "no guard page below a fiber");
  auto* lowest = static_cast<std::byte*>(mapping_) + page;
  stack_ = lowest;
  context_ = context::make_fcontext(lowest + stack_bytes_, stack_bytes_, [](auto transfer) {
    const Handover handover = *static_cast<Handover*>(transfer.data);
    arrive(*handover.from, *handover.to, transfer.fctx);
    handover.to->entry_(handover.to->argument_);
  });
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  ::munmap(mapping_, page + stack_bytes_);
}

void Fiber::switch_to(Fiber& to) {
  Handover handover{this, &to};
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, to.stack_, to.stack_bytes_);
#endif
  const context::transfer_t transfer = context::jump_fcontext(to.context_, &handover);
  arrive(*static_cast<Handover*>(transfer.data)->from, *this, transfer.fctx);
}

// The first act on the stack of `to`.
void Fiber::arrive(Fiber& from, [[maybe_unused]] Fiber& to, void* context_of_from) {
#if defined(__SANITIZE_ADDRESS__)
  // Tells where the stack of `from` is: for the stack of a processor's thread nobody else knows.
  __sanitizer_finish_switch_fiber(to.fake_stack_, &from.stack_, &from.stack_bytes_);
#endif
  from.context_ = context_of_from;
}

}  // namespace kintsugi::emulator
