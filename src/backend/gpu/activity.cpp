#include "backend/gpu/activity.h"

#include <cxxabi.h>

#include <cstdlib>

namespace kintsugi::gpu {

std::string readable_kernel(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  constexpr std::size_t kLongest = 200;
  return (text ? std::string(text.get()) : name).substr(0, kLongest);
}

}  // namespace kintsugi::gpu
