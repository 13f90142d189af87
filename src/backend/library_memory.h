#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace kintsugi {

// How a run uses the libraries behind its backend.
struct LibraryUse {
  std::int64_t attention_elements = 0;  // elements of q in one attention call
  int groups = 0;                       // communicating groups of more than one rank
};

// An upper bound of the device memory that the libraries allocate beside the arena when they are
// first called. A memory plan keeps this much free. It excludes what the libraries allocate in
// every run, which available_bytes() already subtracts. 0 on CPUs: BLAS has only its own buffers,
// and messages are sent from the arena.
std::size_t library_bytes(Backend& backend, const LibraryUse& use);
std::size_t cuda_library_bytes(const LibraryUse& use);

}  // namespace kintsugi
