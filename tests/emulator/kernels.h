#pragma once

#include <cstddef>
#include <functional>
#include <source_location>
#include <tuple>
#include <utility>

// Kernels of a program that are launched by their address, as the runtimes of real GPUs do it.
namespace kintsugi::emulator {

// What a thread of a kernel does, given the kernel and the addresses of its arguments, which are
// copied.
using ThreadBody = std::function<void()>;
using BodyMaker = ThreadBody (*)(const void* kernel, void** arguments);

// The next launch by this thread of the processor is of this kernel, from this place.
void announce(const void* kernel, BodyMaker maker, std::source_location where);

struct AnnouncedLaunch {
  ThreadBody body;
  std::source_location where;
};
// Failure if another kernel was announced.
AnnouncedLaunch announced_launch(const void* kernel, void** arguments);

namespace detail {

template <class... Parameters, std::size_t... kIndex>
ThreadBody body_of(const void* kernel, void** arguments, std::index_sequence<kIndex...>) {
  return [kernel, values = std::tuple<Parameters...>(
                      *static_cast<std::remove_const_t<Parameters>*>(arguments[kIndex])...)] {
    std::apply(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel)), values);
  };
}

}  // namespace detail

template <class... Parameters>
void announce(void (*kernel)(Parameters...), std::source_location where) {
  announce(
      reinterpret_cast<const void*>(kernel),
      [](const void* address, void** arguments) {
        return detail::body_of<Parameters...>(address, arguments,
                                              std::index_sequence_for<Parameters...>());
      },
      where);
}

}  // namespace kintsugi::emulator
