#include "emulator/shared_memory.h"

#include <sanitizer/asan_interface.h>

#include <cstring>

#include "core/error.h"
#include "emulator/race_check.h"

namespace kintsugi::emulator {
namespace {

constexpr std::size_t kGap = 64;
constexpr std::size_t kGaps = 64 * 1024;  // for all gaps and alignments together

std::size_t capacity() { return shared_limit() + kGaps; }

}  // namespace

std::size_t shared_limit() { return KINTSUGI_WAVE == 64 ? 64 * 1024 : 227 * 1024; }

SharedMemory::SharedMemory() : memory_(new std::byte[capacity()]) {
  race_check::register_memory(memory_.get(), capacity(), "shared memory",
                              race_check::Kind::SharedMemory);
}

SharedMemory::~SharedMemory() {
  race_check::forget_memory(memory_.get());
  ASAN_UNPOISON_MEMORY_REGION(memory_.get(), capacity());
}

void SharedMemory::begin(std::size_t dynamic_bytes) {
  ASAN_POISON_MEMORY_REGION(memory_.get(), capacity());
  variables_.clear();
  used_ = asked_ = 0;
  dynamic_ = add(nullptr, dynamic_bytes, 16);
}

void* SharedMemory::variable(const Declaration& declaration) {
  for (const Variable& variable : variables_)
    if (variable.declaration == &declaration) return variable.address;
  return add(&declaration, declaration.bytes, declaration.alignment);
}

std::byte* SharedMemory::add(const Declaration* declaration, std::size_t bytes,
                             std::size_t alignment) {
  asked_ += bytes;
  if (asked_ > shared_limit())
    failure("a block has at least {} bytes of shared memory, but at most {} are allowed", asked_,
            shared_limit());
  void* address = memory_.get() + used_ + kGap;
  std::size_t space = capacity() - used_ - kGap;
  KINTSUGI_CHECK(std::align(alignment < 16 ? 16 : alignment, bytes + kGap, address, space),
                 "a block has {} variables in shared memory, too many for the emulator",
                 variables_.size());
  auto* begin = static_cast<std::byte*>(address);
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
  std::memset(begin, 0xff, bytes);
  used_ = static_cast<std::size_t>(begin - memory_.get()) + bytes;
  variables_.push_back({declaration, begin, bytes});
  return begin;
}

std::string SharedMemory::name_of(const void* address) const {
  for (const Variable& variable : variables_) {
    const auto offset = static_cast<const std::byte*>(address) - variable.address;
    if (offset < 0 || static_cast<std::size_t>(offset) >= variable.bytes) continue;
    if (variable.declaration == nullptr)
      return fmt::format("byte {} of the dynamic shared memory", offset);
    const std::source_location& where = variable.declaration->where;
    return fmt::format("byte {} of the shared variable declared at {}:{}", offset,
                       where.file_name(), where.line());
  }
  return "";
}

}  // namespace kintsugi::emulator
