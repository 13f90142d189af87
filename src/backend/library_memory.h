#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace kintsugi {

// What a run asks of the libraries behind its backend.
struct LibraryUse {
  std::int64_t attention_elements = 0;  // of the queries in one call
  int groups = 0;                       // of several ranks that communicate
};

// What they will at most take of the device's memory for it, beside the arena, when they are first
// called: a memory plan keeps it free. What they take for any run is not in available_bytes().
// On processors that is nothing: BLAS's buffers are all there is, and messages are sent from the
// arena.
std::size_t library_bytes(Backend& backend, const LibraryUse& use);
std::size_t cuda_library_bytes(const LibraryUse& use);

}  // namespace kintsugi
