#pragma once

#include <cstddef>
#include <string>

// Finds pairs of accesses to one byte, by different threads and at least one of them a write, that
// no barrier orders. The compiler reports the accesses: kernels are compiled with
// -fsanitize=thread and linked with the functions of race_check.cpp instead of the sanitizer's own.
// Without that flag nothing is checked. Only registered memory and shared memory are looked at.
// Atomic accesses do not conflict with each other, but with plain ones.
namespace kintsugi::emulator::race_check {

bool active();  // some code of the program is instrumented

enum class Kind : unsigned char { DeviceMemory, SharedMemory };
void register_memory(const void* address, std::size_t bytes, std::string name,
                     Kind kind = Kind::DeviceMemory);
void forget_memory(const void* address);

// For accesses that the compiler does not see. They do nothing outside of a kernel.
void on_read(const void* address, std::size_t bytes);
void on_write(const void* address, std::size_t bytes);

// Called by the executor.
void begin_launch();
void end_launch();  // throws Failure if the launch had a race

}  // namespace kintsugi::emulator::race_check
