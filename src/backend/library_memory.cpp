#include "backend/library_memory.h"

namespace kintsugi {

std::size_t cuda_library_bytes(const LibraryUse& use) {
  // cuDNN's backward, per element: the sum of dq in fp32, and dk and dv of every query head in 16
  // bits. Row sums are small beside them.
  constexpr std::size_t kScratch = 8;
  // NCCL's buffers, made at the first call of a group.
  constexpr std::size_t kGroup = std::size_t{256} << 20;
  return kScratch * static_cast<std::size_t>(use.attention_elements) +
         kGroup * static_cast<std::size_t>(use.groups);
}

}  // namespace kintsugi
