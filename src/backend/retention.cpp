#include "backend/retention.h"

#include <algorithm>

namespace kintsugi {
namespace {

constexpr std::size_t kAlignment = 256;

// Places tensors one after another in a buffer. With a null base it only counts the bytes.
struct Cursor {
  Tensor take(DType dtype, Shape shape) {
    void* address = base == nullptr ? nullptr : static_cast<std::byte*>(base) + used;
    const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
    used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return Tensor(address, dtype, shape);
  }
  void* base;
  std::size_t used = 0;
};

}  // namespace

std::int64_t RetentionSizes::chunk_tokens() const {
  return std::min(chunk > 0 ? chunk : kRetentionChunk, length);
}
std::int64_t RetentionSizes::chunks() const {
  const std::int64_t tokens = std::max<std::int64_t>(1, chunk_tokens());
  return (length + tokens - 1) / tokens;
}

std::size_t retention_workspace_bytes(DType dtype, const RetentionSizes& sizes, bool backward) {
  return RetentionWorkspace({}, dtype, sizes, backward).bytes;
}

RetentionWorkspace::RetentionWorkspace(const Tensor& memory, DType dtype, const RetentionSizes& n,
                                       bool backward) {
  Cursor cursor{memory.data()};
  const DType wide = accumulator_of(dtype);
  const std::int64_t chunk = n.chunk_tokens(), chunks = n.batch * n.chunks();
  powers = cursor.take(wide, {n.heads, n.length + 1});
  rows = cursor.take(wide, {n.heads, n.length});
  keys = cursor.take(dtype, {n.heads, n.batch, n.length, n.k_dim});
  queries = cursor.take(dtype, {n.heads, n.batch, n.length, n.k_dim});
  states = cursor.take(dtype, {n.heads, chunks, n.k_dim, n.v_dim});
  scores = cursor.take(dtype, {n.heads, chunks, chunk, chunk});
  if (backward) {
    dstates = cursor.take(dtype, {n.heads, chunks, n.k_dim, n.v_dim});
    dscores = cursor.take(dtype, {n.heads, chunks, chunk, chunk});
  }
  bytes = cursor.used;
}

RetentionSizes retention_sizes(const Tensor& x, const Tensor& y, const RetentionOptions& options) {
  return {.batch = x.extent(0),
          .length = x.extent(1),
          .heads = x.extent(2),
          .k_dim = x.extent(3),
          .v_dim = y.extent(3),
          .chunk = options.chunk};
}

}  // namespace kintsugi
