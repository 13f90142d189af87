#include "backend/gpu/cuda/cublaslt.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <type_traits>

#include "backend/gpu/cuda/native.h"
#include "backend/gpu/matmul_library.h"

// Scales of rows exist since CUDA 12.9.
#define KINTSUGI_CUBLAS_ROW_SCALES (CUDART_VERSION >= 12090)

#define KINTSUGI_CUBLAS(expression)                                                    \
  do {                                                                                 \
    const cublasStatus_t kintsugi_status = (expression);                               \
    if (kintsugi_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                         \
      failure("cuBLASLt: {} in {} at {}:{}", cublasLtGetStatusString(kintsugi_status), \
              #expression, __FILE__, __LINE__);                                        \
  } while (false)

namespace kintsugi::gpu {
namespace {

namespace lt {

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const {
    destroy(object);
  }
};
template <class T, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<destroy>>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

}  // namespace lt

constexpr int kCandidates = 16;

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

template <class T>
void set(const lt::Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  KINTSUGI_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

// The words of an algorithm are those of the library.
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(MatmulAlgorithm));
MatmulAlgorithm words_of(const cublasLtMatmulAlgo_t& algorithm) {
  MatmulAlgorithm words;
  std::memcpy(words.data(), &algorithm, sizeof(algorithm));
  return words;
}
cublasLtMatmulAlgo_t algorithm_of(const MatmulAlgorithm& words) {
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, words.data(), sizeof(algorithm));
  return algorithm;
}

class CublasMatmul final : public LibraryMatmul {
 public:
  CublasMatmul(cublasLtHandle_t handle, const MatmulProblem& p, bool tf32)
      : handle_(handle),
        operation_(operation_of(p, tf32)),
        first_(layout_of(p.b)),
        second_(layout_of(p.a)),
        added_(layout_of(p.added ? p.added : p.c)),
        c_(layout_of(p.c)) {}

  std::vector<MatmulAlgorithm> propose(const MatmulProblem& problem,
                                       std::size_t scratch_bytes) const override;
  bool is_usable(const MatmulAlgorithm& algorithm, std::size_t scratch_bytes) const override;
  void set_pointers(const MatmulProblem& p) override { gpu::set_pointers(operation_, p); }
  std::string launch(const MatmulProblem& p, const MatmulAlgorithm& algorithm, void* c,
                     MatmulScratch scratch, Stream stream) const override;

 private:
  const cublasLtHandle_t handle_;
  lt::Operation operation_;
  lt::Layout first_, second_, added_, c_;  // the library's a (our b), b (our a), c and d
};

std::vector<MatmulAlgorithm> CublasMatmul::propose(const MatmulProblem& p,
                                                   std::size_t scratch_bytes) const {
  cublasLtMatmulPreference_t raw = nullptr;
  KINTSUGI_CUBLAS(cublasLtMatmulPreferenceCreate(&raw));
  const lt::Preference preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, scratch_bytes);
  // Partial sums of a split-k reduction are never added in 16 bits.
  const auto schemes = static_cast<std::uint32_t>(p.c.dtype() == accumulator_of(p.c.dtype())
                                                      ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                      : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  const auto alignment = [](const Tensor& x) {
    return static_cast<std::uint32_t>(alignment_of(x));
  };
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.added ? p.added : p.c));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c));

  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, operation_.get(), first_.get(), second_.get(), added_.get(), c_.get(),
      preference.get(), kCandidates, results.data(), &found);
  std::vector<MatmulAlgorithm> candidates;
  if (status != CUBLAS_STATUS_SUCCESS) return candidates;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= scratch_bytes)
      candidates.push_back(words_of(results[i].algo));
  return candidates;
}

bool CublasMatmul::is_usable(const MatmulAlgorithm& algorithm, std::size_t scratch_bytes) const {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasLtMatmulAlgo_t native = algorithm_of(algorithm);
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, operation_.get(), first_.get(), second_.get(), added_.get(),
                              c_.get(), &native, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= scratch_bytes;
}

std::string CublasMatmul::launch(const MatmulProblem& p, const MatmulAlgorithm& algorithm, void* c,
                                 MatmulScratch scratch, Stream stream) const {
  const MatmulScales scales(p);
  const cublasLtMatmulAlgo_t words = algorithm_of(algorithm);
  const cublasStatus_t status =
      cublasLtMatmul(handle_, operation_.get(), scales.product(), p.b.data(), first_.get(),
                     p.a.data(), second_.get(), scales.added(), added_or(p, c), added_.get(), c,
                     c_.get(), &words, scratch.address, scratch.bytes, native(stream));
  return status == CUBLAS_STATUS_SUCCESS ? "" : cublasLtGetStatusString(status);
}

class CublasLt final : public MatmulLibrary {
 public:
  explicit CublasLt(bool tf32) : tf32_(tf32) { KINTSUGI_CUBLAS(cublasLtCreate(&handle_)); }
  ~CublasLt() override { cublasLtDestroy(handle_); }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  std::string name() const override { return fmt::format("cuBLASLt {}", cublasLtGetVersion()); }
  std::unique_ptr<LibraryMatmul> describe(const MatmulProblem& p) override {
    return std::make_unique<CublasMatmul>(handle_, p, tf32_);
  }

 private:
  const bool tf32_;
  cublasLtHandle_t handle_ = nullptr;
};
}  // namespace

std::string why_no_row_scales() {
#if KINTSUGI_CUBLAS_ROW_SCALES
  constexpr std::size_t kFirst = 120900;  // the library that is loaded may be older
  if (cublasLtGetVersion() >= kFirst) return "";
#endif
  return fmt::format("scales for each row need CUDA 12.9, this is {}.{} with cuBLASLt {}",
                     CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, cublasLtGetVersion());
}

std::vector<std::unique_ptr<MatmulLibrary>> matmul_libraries(const MatmulSettings& settings) {
  std::vector<std::unique_ptr<MatmulLibrary>> libraries;
  libraries.push_back(std::make_unique<CublasLt>(settings.tf32));
  return libraries;
}

}  // namespace kintsugi::gpu
