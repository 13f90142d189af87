#include "tensor/quantized.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kAlignment = 256;
std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::int64_t quantized_bytes(std::int64_t rows, std::int64_t columns) {
  return aligned(rows * columns) + aligned(rows * static_cast<std::int64_t>(sizeof(float)));
}

Quantized quantized_in(const Tensor& memory, std::int64_t rows, std::int64_t columns,
                       bool one_scale) {
  KINTSUGI_CHECK(memory.bytes() >= static_cast<std::size_t>(quantized_bytes(rows, columns)),
                 "{} bytes are too few for {} x {} in fp8", memory.bytes(), rows, columns);
  auto* begin = static_cast<std::byte*>(memory.data());
  return {Tensor(begin, DType::F8, {rows, columns}),
          Tensor(begin + aligned(rows * columns), DType::F32, {one_scale ? 1 : rows})};
}

}  // namespace kintsugi
