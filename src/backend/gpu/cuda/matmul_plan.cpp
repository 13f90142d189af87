#include "backend/gpu/cuda/matmul_plan.h"

#include <fmt/format.h>

#include <sstream>

// Scales of rows exist since CUDA 12.9.
#define KINTSUGI_CUBLAS_ROW_SCALES (CUDART_VERSION >= 12090)

namespace kintsugi::gpu {
namespace {

constexpr std::uintptr_t kAlignment = 16;  // the alignment that the fastest kernels need

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return CUDA_R_64F;
    case DType::F32:
      return CUDA_R_32F;
    case DType::BF16:
      return CUDA_R_16BF;
    case DType::F16:
      return CUDA_R_16F;
    case DType::F8:
      return CUDA_R_8F_E4M3;
    default:
      failure("matmul does not support {}", to_string(dtype));
  }
}

lt::Layout layout_of(const Tensor& x) {
  cublasLtMatrixLayout_t layout = nullptr;
  // Our rows are the library's columns.
  KINTSUGI_CUBLAS(cublasLtMatrixLayoutCreate(
      &layout, cuda_type(x.dtype()), static_cast<std::uint64_t>(x.extent(rows_of(x) + 1)),
      static_cast<std::uint64_t>(x.extent(rows_of(x))), row_stride(x)));
  lt::Layout owned(layout);
  const auto count = static_cast<std::int32_t>(count_of(x));
  const std::int64_t stride = batch_stride(x);
  KINTSUGI_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                   &count, sizeof(count)));
  KINTSUGI_CUBLAS(cublasLtMatrixLayoutSetAttribute(
      layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  return owned;
}

template <class T>
void set(const lt::Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  KINTSUGI_CUBLAS(
      cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)));
}

cublasLtEpilogue_t epilogue_of(const MatmulProblem& p) {
  switch (p.epilogue) {
    case MatmulProblem::Epilogue::Gelu:
      return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case MatmulProblem::Epilogue::GeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case MatmulProblem::Epilogue::None:
      break;
  }
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

void set_pointers(const lt::Operation& operation, const MatmulProblem& p) {
  if (p.is_fp8()) {
    set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.scales_b.data());
    set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.scales_a.data());
  }
  if (p.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data());
  if (p.gelu_input) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.gelu_input.data());
}

// One scale per matrix is the default.
void set_scale_mode(const lt::Operation& operation, const MatmulProblem& p) {
  if (p.fast_accumulation) set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  if (!p.has_row_scales()) return;
#if KINTSUGI_CUBLAS_ROW_SCALES
  const std::int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
#else
  failure("matmul_fp8: {}", why_no_row_scales());
#endif
}

lt::Operation operation_of(const MatmulProblem& p, bool tf32) {
  const bool wide = p.c.dtype() == DType::F64;
  const bool fast = tf32 && p.a.dtype() == DType::F32;
  cublasLtMatmulDesc_t raw = nullptr;
  KINTSUGI_CUBLAS(cublasLtMatmulDescCreate(&raw,
                                           wide   ? CUBLAS_COMPUTE_64F
                                           : fast ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                  : CUBLAS_COMPUTE_32F,
                                           wide ? CUDA_R_64F : CUDA_R_32F));
  lt::Operation operation(raw);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.bias.dtype()));
  if (p.gelu_input) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.gelu_input.stride(0));
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
  set_scale_mode(operation, p);
  set_pointers(operation, p);
  return operation;
}

}  // namespace

std::int64_t alignment_of(const Tensor& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data()) |
                       static_cast<std::uintptr_t>(batch_stride(x)) * size_of(x.dtype());
  std::uintptr_t alignment = kAlignment;
  while (address % alignment != 0) alignment /= 2;
  return static_cast<std::int64_t>(alignment);
}

MatmulKey key_of(const MatmulProblem& p) {
  return {static_cast<std::int64_t>(p.a.dtype()),
          static_cast<std::int64_t>(p.c.dtype()),
          p.transpose_a,
          p.transpose_b,
          p.m,
          p.n,
          p.k,
          count_of(p.c),
          row_stride(p.a),
          batch_stride(p.a),
          row_stride(p.b),
          batch_stride(p.b),
          row_stride(p.c),
          batch_stride(p.c),
          !p.added       ? 0
          : p.in_place() ? 1
                         : 2,
          p.added ? row_stride(p.added) : 0,
          p.bias ? 1 : 0,
          static_cast<std::int64_t>(p.epilogue),
          alignment_of(p.a),
          alignment_of(p.b),
          alignment_of(p.c),
          p.added ? alignment_of(p.added) : 0,
          p.has_row_scales(),
          p.fast_accumulation};
}

// Names without fp8 end before its two numbers, so that files written before fp8 stay valid.
std::string cache_name(const MatmulProblem& p) {
  const MatmulKey key = key_of(p);
  return fmt::format("{}", fmt::join(key.begin(), key.end() - (p.is_fp8() ? 0 : 2), " "));
}

void set_pointers(const MatmulPlan& plan, const MatmulProblem& p) {
  set_pointers(plan.operation, p);
}

MatmulPlan describe(const MatmulProblem& p, bool tf32) {
  return {.operation = operation_of(p, tf32),
          .first = layout_of(p.b),
          .second = layout_of(p.a),
          .added = layout_of(p.added ? p.added : p.c),
          .c = layout_of(p.c),
          .supported = false,
          .algorithm = {}};
}

std::string why_no_row_scales() {
#if KINTSUGI_CUBLAS_ROW_SCALES
  constexpr std::size_t kFirst = 120900;  // the library that is loaded may be older
  if (cublasLtGetVersion() >= kFirst) return "";
#endif
  return fmt::format("scales for each row need CUDA 12.9, this is {}.{} with cuBLASLt {}",
                     CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, cublasLtGetVersion());
}

std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm) {
  return fmt::format("{:016x}", fmt::join(algorithm.data, " "));
}

std::optional<cublasLtMatmulAlgo_t> parse_algorithm(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm = {};
  std::istringstream stream(text);
  for (std::uint64_t& word : algorithm.data)
    if (!(stream >> std::hex >> word)) return std::nullopt;
  return algorithm;
}

}  // namespace kintsugi::gpu
