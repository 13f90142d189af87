#include "backend/library_memory.h"

namespace kintsugi {

std::size_t cuda_library_bytes(const LibraryUse& use) {
  // cuDNN's backward, per query element: 4 bytes for dq in fp32, and 2 bytes each for dk and dv of
  // every query head. Row sums are negligible.
  constexpr std::size_t kScratch = 8;
  // NCCL allocates its buffers at a group's first call.
  constexpr std::size_t kGroup = std::size_t{256} << 20;
  return kScratch * static_cast<std::size_t>(use.attention_elements) +
         kGroup * static_cast<std::size_t>(use.groups);
}

}  // namespace kintsugi
