#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <type_traits>

namespace kintsugi {
namespace {

// A block of sums stays in the L1 cache while the parts are added.
constexpr std::int64_t kBlock = 1024;

template <class T>
void reduce(T* destination, std::span<const void* const> parts, std::int64_t elements,
            ReduceOp op) {
  using Wide = std::conditional_t<sizeof(T) == 2, float, T>;  // of bf16 and f16: float
  std::array<Wide, kBlock> sums;
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - begin);
    const T* first = static_cast<const T*>(parts.front()) + begin;
    for (std::int64_t i = 0; i < count; ++i) sums[i] = static_cast<Wide>(first[i]);
    for (const void* part : parts.subspan(1)) {
      const T* x = static_cast<const T*>(part) + begin;
      if (op == ReduceOp::Sum)
        for (std::int64_t i = 0; i < count; ++i) sums[i] += static_cast<Wide>(x[i]);
      else
        for (std::int64_t i = 0; i < count; ++i) {
          const Wide value = static_cast<Wide>(x[i]);
          sums[i] = sums[i] >= value || sums[i] != sums[i] ? sums[i] : value;
        }
    }
    for (std::int64_t i = 0; i < count; ++i) destination[begin + i] = static_cast<T>(sums[i]);
  }
}

}  // namespace

void reduce_parts(void* destination, std::span<const void* const> parts, std::int64_t elements,
                  DType dtype, ReduceOp op) {
  KINTSUGI_CHECK(!parts.empty(), "nothing to reduce");
  switch (dtype) {
    case DType::F64:
      return reduce(static_cast<double*>(destination), parts, elements, op);
    case DType::F32:
      return reduce(static_cast<float*>(destination), parts, elements, op);
    case DType::BF16:
      return reduce(static_cast<bf16*>(destination), parts, elements, op);
    case DType::F16:
      return reduce(static_cast<f16*>(destination), parts, elements, op);
    case DType::I64:
      return reduce(static_cast<std::int64_t*>(destination), parts, elements, op);
    case DType::I32:
      return reduce(static_cast<std::int32_t*>(destination), parts, elements, op);
    case DType::U8:
      return reduce(static_cast<std::uint8_t*>(destination), parts, elements, op);
    case DType::F8:
      failure("fp8 cannot be reduced");
  }
}

}  // namespace kintsugi
