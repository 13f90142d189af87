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
inline std::size_t gpu_library_bytes(const LibraryUse& use) {
  // cuDNN's backward, per query element: 4 bytes for dq in fp32, and 2 bytes each for dk and dv of
  // every query head. Row sums are negligible.
  constexpr std::size_t kScratch = 8;
  // NCCL allocates its buffers at a group's first call.
  constexpr std::size_t kGroup = std::size_t{256} << 20;
  return kScratch * static_cast<std::size_t>(use.attention_elements) +
         kGroup * static_cast<std::size_t>(use.groups);
}
inline std::size_t library_bytes(const Backend& backend, const LibraryUse& use) {
  return backend.device().stream == nullptr ? 0 : gpu_library_bytes(use);
}

}  // namespace kintsugi
