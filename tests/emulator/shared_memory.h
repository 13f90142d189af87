#pragma once

#include <cstddef>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

// The shared memory of a block. Between two variables there is a gap that the address sanitizer
// guards. Every block finds it filled with bytes 0xff: NaN, or -1.
namespace kintsugi::emulator {

// The most bytes that a block may have: of an H100, or of any of AMD's GPUs.
std::size_t shared_limit();

struct Declaration {
  std::size_t bytes, alignment;
  std::source_location where;
};

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Begins a block, with that much dynamic shared memory.
  void begin(std::size_t dynamic_bytes);
  void* dynamic() const { return dynamic_; }
  // The memory of a declaration, whose address is its identity.
  void* variable(const Declaration& declaration);
  // The declaration that an address belongs to, in words; empty: none.
  std::string name_of(const void* address) const;

 private:
  struct Variable {
    const Declaration* declaration;  // nullptr: dynamic shared memory
    std::byte* address;
    std::size_t bytes;
  };
  std::byte* add(const Declaration* declaration, std::size_t bytes, std::size_t alignment);

  std::unique_ptr<std::byte[]> memory_;
  std::size_t used_ = 0;   // with gaps
  std::size_t asked_ = 0;  // without
  std::byte* dynamic_ = nullptr;
  std::vector<Variable> variables_;
};

// The shared memory of the running block.
SharedMemory& shared_memory();

// A variable in shared memory. Key is a type of its own for each declaration: decltype([] {}).
template <class T, class Key>
T& shared(std::source_location where = std::source_location::current()) {
  static const Declaration declaration{sizeof(T), alignof(T), where};
  return *static_cast<T*>(shared_memory().variable(declaration));
}

// At a multiple of 16 bytes, of the size that the launch asked for.
inline void* dynamic_shared() { return shared_memory().dynamic(); }

}  // namespace kintsugi::emulator
