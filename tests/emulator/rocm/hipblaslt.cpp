// A stand-in for libhipblaslt of ROCm 6 and 7, on top of OpenBLAS. Like the library on gfx90a it
// has no matmuls of 16-bit operands into fp32. KINTSUGI_STAND_IN_HIPBLASLT=none: it proposes
// nothing at all.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "emulator/rocm/gemm.h"

using namespace kintsugi;
using namespace kintsugi::stand_in;

namespace {

constexpr int kSuccess = 0, kInvalidValue = 3, kNotSupported = 6;

struct Layout {
  DType type = DType::F32;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t ld = 0;
  std::int32_t count = 1;
  std::int64_t stride = 0;
};
struct Operation {
  int compute = 0, scale = 0;
  int transpose_a = 111, transpose_b = 111, epilogue = 1, bias_type = 0;
  void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_ld = 0;
};
struct Preference {
  std::size_t workspace = 0;
};
struct Algorithm {
  std::uint64_t words[3];
};
struct Proposal {
  Algorithm algorithm;
  std::size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
constexpr std::uint64_t kMark = 0x6869706c74;  // in every algorithm

bool type_of(int type, DType& result) {
  switch (type) {
    case 0:
      result = DType::F32;
      return true;
    case 1:
      result = DType::F64;
      return true;
    case 2:
      result = DType::F16;
      return true;
    case 14:
      result = DType::BF16;
      return true;
    default:
      return false;
  }
}

template <class T>
int set(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T)) return kInvalidValue;
  std::memcpy(&to, from, sizeof(T));
  return kSuccess;
}

Matrix matrix(const void* data, const Layout& layout) {
  return {const_cast<void*>(data), layout.type, layout.ld, layout.stride};
}

}  // namespace

extern "C" {

int hipblasLtCreate(void** handle) {
  *handle = new int(0);
  return kSuccess;
}
int hipblasLtDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return kSuccess;
}
int hipblasLtGetVersion(void*, int* version) {
  *version = 100000;
  return kSuccess;
}

int hipblasLtMatrixLayoutCreate(void** handle, int type, std::uint64_t rows, std::uint64_t columns,
                                std::int64_t ld) {
  Layout layout{.rows = rows, .columns = columns, .ld = ld};
  if (!type_of(type, layout.type) || ld < static_cast<std::int64_t>(rows)) return kInvalidValue;
  *handle = new Layout(layout);
  return kSuccess;
}
int hipblasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Layout*>(layout);
  return kSuccess;
}
int hipblasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* value,
                                      std::size_t bytes) {
  Layout& layout = *static_cast<Layout*>(handle);
  switch (attribute) {
    case 0:
      return set(layout.count, value, bytes);
    case 1:
      return set(layout.stride, value, bytes);
    default:
      return kInvalidValue;
  }
}

int hipblasLtMatmulDescCreate(void** handle, int compute, int scale) {
  const bool narrow = compute == 2 && scale == 0, wide = compute == 7 && scale == 1;
  if (!narrow && !wide) return kInvalidValue;
  *handle = new Operation{.compute = compute, .scale = scale};
  return kSuccess;
}
int hipblasLtMatmulDescDestroy(void* operation) {
  delete static_cast<Operation*>(operation);
  return kSuccess;
}
int hipblasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value,
                                    std::size_t bytes) {
  Operation& operation = *static_cast<Operation*>(handle);
  switch (attribute) {
    case 0:
      return set(operation.transpose_a, value, bytes);
    case 1:
      return set(operation.transpose_b, value, bytes);
    case 2:
      return set(operation.epilogue, value, bytes);
    case 3:
      return set(operation.bias, value, bytes);
    case 4:
      return set(operation.bias_type, value, bytes);
    case 10:
      return set(operation.aux, value, bytes);
    case 11:
      return set(operation.aux_ld, value, bytes);
    default:
      return kInvalidValue;
  }
}

int hipblasLtMatmulPreferenceCreate(void** handle) {
  *handle = new Preference;
  return kSuccess;
}
int hipblasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Preference*>(preference);
  return kSuccess;
}
int hipblasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value,
                                          std::size_t bytes) {
  if (attribute != 1) return kInvalidValue;
  return set(static_cast<Preference*>(preference)->workspace, value, bytes);
}

// Two, of which the second needs workspace.
int hipblasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void*, void*, void* d,
                                    void* preference, int wanted, Proposal* proposals, int* found) {
  const char* const which = std::getenv("KINTSUGI_STAND_IN_HIPBLASLT");
  const DType from = static_cast<Layout*>(a)->type, to = static_cast<Layout*>(d)->type;
  const int epilogue = static_cast<Operation*>(operation)->epilogue;
  *found = 0;
  if ((which != nullptr && std::string_view(which) == "none") || from != to ||
      (epilogue != 1 && epilogue != 4 && epilogue != 160 && epilogue != 164 && epilogue != 192))
    return kNotSupported;
  constexpr std::size_t kWorkspace = 4096;
  for (std::uint64_t i = 0; i < 2 && *found < wanted; ++i) {
    if (i == 1 && static_cast<Preference*>(preference)->workspace < kWorkspace) break;
    proposals[(*found)++] = {.algorithm = {{kMark, i, 0}},
                             .workspace = i * kWorkspace,
                             .status = 0,
                             .waves = 1,
                             .reserved = {}};
  }
  return kSuccess;
}

int hipblasLtMatmul(void*, void* handle, const void* alpha, const void* a, void* a_layout,
                    const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                    void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                    std::size_t bytes, void* stream) {
  const Operation& operation = *static_cast<Operation*>(handle);
  const Layout &la = *static_cast<Layout*>(a_layout), &lb = *static_cast<Layout*>(b_layout),
               &lc = *static_cast<Layout*>(c_layout), &ld = *static_cast<Layout*>(d_layout);
  if (algorithm->words[0] != kMark || (algorithm->words[1] == 1 && bytes < 4096) ||
      (bytes > 0 && workspace == nullptr))
    return kInvalidValue;
  Gemm gemm{.transpose_a = operation.transpose_a == 112,
            .transpose_b = operation.transpose_b == 112,
            .m = static_cast<std::int64_t>(ld.rows),
            .n = static_cast<std::int64_t>(ld.columns),
            .count = ld.count,
            .a = matrix(a, la),
            .b = matrix(b, lb),
            .c = matrix(c, lc),
            .d = matrix(d, ld)};
  gemm.k = static_cast<std::int64_t>(gemm.transpose_a ? la.rows : la.columns);
  const auto same = [](std::uint64_t x, std::int64_t y) {
    return static_cast<std::int64_t>(x) == y;
  };
  if (!same(gemm.transpose_a ? la.columns : la.rows, gemm.m) ||
      !same(gemm.transpose_b ? lb.columns : lb.rows, gemm.k) ||
      !same(gemm.transpose_b ? lb.rows : lb.columns, gemm.n) || la.type != ld.type)
    return kInvalidValue;
  const bool wide = operation.compute == 7;
  gemm.alpha = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  gemm.beta = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  if (operation.epilogue == 4 || operation.epilogue == 164) gemm.bias = operation.bias;
  gemm.aux = {operation.aux, ld.type, operation.aux_ld, 0};
  if (operation.epilogue == 160 || operation.epilogue == 164) gemm.epilogue = Epilogue::Gelu;
  if (operation.epilogue == 192) gemm.epilogue = Epilogue::GeluGradient;
  return queue(stream, gemm);
}

}  // extern "C"
