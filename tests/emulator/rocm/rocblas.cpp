// A stand-in for librocblas, on top of OpenBLAS.
#include <cstdio>

#include "emulator/rocm/gemm.h"

using namespace kintsugi;
using namespace kintsugi::stand_in;

namespace {

struct Handle {
  void* stream = nullptr;
};

bool type_of(int type, DType& result) {
  switch (type) {
    case 150:
      result = DType::F16;
      return true;
    case 151:
      result = DType::F32;
      return true;
    case 152:
      result = DType::F64;
      return true;
    case 168:
      result = DType::BF16;
      return true;
    default:
      return false;
  }
}

constexpr int kSuccess = 0, kNotImplemented = 3, kInvalidValue = 11;

}  // namespace

extern "C" {

int rocblas_create_handle(void** handle) {
  *handle = new Handle;
  return kSuccess;
}
int rocblas_destroy_handle(void* handle) {
  delete static_cast<Handle*>(handle);
  return kSuccess;
}
int rocblas_set_stream(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return kSuccess;
}
int rocblas_set_atomics_mode(void*, int) { return kSuccess; }
int rocblas_get_version_string(char* text, std::size_t bytes) {
  std::snprintf(text, bytes, "5.0.0.stand-in");
  return kSuccess;
}
const char* rocblas_status_to_string(int status) {
  return status == kNotImplemented ? "rocblas_status_not_implemented"
                                   : "rocblas_status_invalid_value";
}

int rocblas_gemm_strided_batched_ex(void* handle, int transpose_a, int transpose_b, int m, int n,
                                    int k, const void* alpha, const void* a, int a_type, int lda,
                                    std::int64_t a_stride, const void* b, int b_type, int ldb,
                                    std::int64_t b_stride, const void* beta, const void* c,
                                    int c_type, int ldc, std::int64_t c_stride, void* d, int d_type,
                                    int ldd, std::int64_t d_stride, int count, int compute_type,
                                    int algorithm, std::int32_t, std::uint32_t flags) {
  const auto operation = [](int value) { return value == 111 || value == 112; };
  if (!operation(transpose_a) || !operation(transpose_b) || algorithm != 0 || flags != 0 ||
      m <= 0 || n <= 0 || k <= 0 || lda < (transpose_a == 111 ? m : k) ||
      ldb < (transpose_b == 111 ? k : n) || ldc < m || ldd < m)
    return kInvalidValue;
  Gemm gemm{.transpose_a = transpose_a == 112,
            .transpose_b = transpose_b == 112,
            .m = m,
            .n = n,
            .k = k,
            .count = count,
            .a = {.data = const_cast<void*>(a), .ld = lda, .stride = a_stride},
            .b = {.data = const_cast<void*>(b), .ld = ldb, .stride = b_stride},
            .c = {.data = const_cast<void*>(c), .ld = ldc, .stride = c_stride},
            .d = {.data = d, .ld = ldd, .stride = d_stride}};
  DType compute = DType::F32;
  if (!type_of(a_type, gemm.a.type) || !type_of(b_type, gemm.b.type) ||
      !type_of(c_type, gemm.c.type) || !type_of(d_type, gemm.d.type) ||
      !type_of(compute_type, compute) || gemm.a.type != gemm.b.type || gemm.c.type != gemm.d.type ||
      compute != accumulator_of(gemm.a.type))
    return kNotImplemented;
  const bool wide = compute == DType::F64;
  gemm.alpha = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  gemm.beta = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  return queue(static_cast<Handle*>(handle)->stream, gemm);
}

}  // extern "C"
