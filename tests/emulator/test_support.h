#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "emulator/device.h"
#include "emulator/race_check.h"

// For tests of the emulator.
namespace kintsugi::emulator {

#define SHARED(type, name) auto& name = emulator::shared<type, decltype([] {})>()

// Memory of the device.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t n, T value = T{}) : values_(n, value) {
    race_check::register_memory(values_.data(), n * sizeof(T), "a buffer");
  }
  ~Buffer() { race_check::forget_memory(values_.data()); }
  T* data() { return values_.data(); }
  T& operator[](std::size_t i) { return values_[i]; }

 private:
  std::vector<T> values_;
};

inline Grid grid_of(unsigned blocks, unsigned threads, std::size_t shared_bytes = 0) {
  return {.blocks = {blocks, 1, 1}, .threads = {threads, 1, 1}, .shared_bytes = shared_bytes};
}

// What is wrong with a kernel; empty: nothing was found.
template <class Body>
std::string mistake_of(const Grid& grid, Body&& body) {
  try {
    run(grid, body);
  } catch (const Failure& error) {
    return error.what();
  }
  return "";
}
#define EXPECT_MISTAKE(text, part) \
  EXPECT_TRUE((text).find(part) != std::string::npos) << "found: " << (text)

}  // namespace kintsugi::emulator
