// Matrix products through cuBLASLt, which counts in columns: our row-major c = a b is its c^T = b^T
// a^T, so the operands trade places and nothing is ever transposed in memory.
#include "backend/cuda/matmul.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <type_traits>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/tuning_cache.h"

#define KINTSUGI_CUBLAS(expression)                                                    \
  do {                                                                                 \
    const cublasStatus_t kintsugi_status = (expression);                               \
    if (kintsugi_status != CUBLAS_STATUS_SUCCESS) [[unlikely]]                         \
      failure("cuBLASLt: {} in {} at {}:{}", cublasLtGetStatusString(kintsugi_status), \
              #expression, __FILE__, __LINE__);                                        \
  } while (false)

namespace kintsugi::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;
constexpr int kCandidates = 16;
constexpr const char* kApart = "apart";    // in the cache: fusing does not pay
constexpr std::uintptr_t kAlignment = 16;  // what the fastest kernels ask of an address

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

cudaDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return CUDA_R_64F;
    case DType::F32:
      return CUDA_R_32F;
    case DType::BF16:
      return CUDA_R_16BF;
    case DType::F16:
      return CUDA_R_16F;
    default:
      failure("no matrix product of {}", to_string(dtype));
  }
}

// Operands are (rows, columns), or (count, rows, columns): as many matmuls at once.
int rows_of(const Tensor& x) { return x.rank() - 2; }
std::int64_t leading(const Tensor& x) { return x.stride(rows_of(x)); }
std::int64_t count_of(const Tensor& x) { return x.rank() == 3 ? x.extent(0) : 1; }
std::int64_t between(const Tensor& x) { return x.rank() == 3 ? x.stride(0) : 0; }

std::int64_t alignment_of(const Tensor& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data()) |
                       static_cast<std::uintptr_t>(between(x)) * size_of(x.dtype());
  std::uintptr_t alignment = kAlignment;
  while (address % alignment != 0) alignment /= 2;
  return static_cast<std::int64_t>(alignment);
}

// One product, with the operands as the library will see them. `added` is what the product is added
// to: c itself, the residual, or nothing. `beside` is what a GELU reads or writes beside its
// result: the values before it.
struct Problem {
  enum class Epilogue : std::uint8_t { None, Gelu, GeluGradient };

  Problem(const Tensor& c, const Tensor& a, const Tensor& b, const MatmulOptions& o)
      : c(o.gelu ? o.gelu : c),
        a(a),
        b(b),
        bias(o.bias),
        transpose_a(o.transpose_a),
        transpose_b(o.transpose_b),
        m(c.extent(rows_of(c))),
        n(c.extent(rows_of(c) + 1)),
        k(a.extent(rows_of(a) + (o.transpose_a ? 0 : 1))),
        added(o.accumulate ? c : o.residual),
        beside(o.gelu ? c : o.gelu_input),
        epilogue(o.gelu         ? Epilogue::Gelu
                 : o.gelu_input ? Epilogue::GeluGradient
                                : Epilogue::None) {}

  bool in_place() const { return added && added.data() == c.data(); }

  Tensor c, a, b, bias;
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  Tensor added, beside;
  Epilogue epilogue;
};

// Everything an algorithm may depend on.
using Key = std::array<std::int64_t, 22>;
Key key_of(const Problem& p) {
  return {static_cast<std::int64_t>(p.a.dtype()),
          static_cast<std::int64_t>(p.c.dtype()),
          p.transpose_a,
          p.transpose_b,
          p.m,
          p.n,
          p.k,
          count_of(p.c),
          leading(p.a),
          between(p.a),
          leading(p.b),
          between(p.b),
          leading(p.c),
          between(p.c),
          !p.added       ? 0
          : p.in_place() ? 1
                         : 2,
          p.added ? leading(p.added) : 0,
          p.bias ? 1 : 0,
          static_cast<std::int64_t>(p.epilogue),
          alignment_of(p.a),
          alignment_of(p.b),
          alignment_of(p.c),
          p.added ? alignment_of(p.added) : 0};
}

Layout layout_of(const Tensor& x) {
  cublasLtMatrixLayout_t layout = nullptr;
  // Our rows are the library's columns.
  KINTSUGI_CUBLAS(cublasLtMatrixLayoutCreate(
      &layout, library_type(x.dtype()), static_cast<std::uint64_t>(x.extent(rows_of(x) + 1)),
      static_cast<std::uint64_t>(x.extent(rows_of(x))), leading(x)));
  Layout owned(layout);
  const auto count = static_cast<std::int32_t>(count_of(x));
  const std::int64_t stride = between(x);
  KINTSUGI_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                   &count, sizeof(count)));
  KINTSUGI_CUBLAS(cublasLtMatrixLayoutSetAttribute(
      layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  return owned;
}

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  KINTSUGI_CUBLAS(
      cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)));
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  KINTSUGI_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

struct Plan {
  Operation operation;
  Layout first, second, added, c;  // the library's a (our b), b (our a), c and d
  bool supported = false;
  cublasLtMatmulAlgo_t algorithm = {};
};

cublasLtEpilogue_t epilogue_of(const Problem& p) {
  switch (p.epilogue) {
    case Problem::Epilogue::Gelu:
      return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Problem::Epilogue::GeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Problem::Epilogue::None:
      break;
  }
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// The operands that a description holds itself, and that change from call to call.
void set_pointers(const Operation& operation, const Problem& p) {
  if (p.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data());
  if (p.beside) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.beside.data());
}

Operation operation_of(const Problem& p, bool tf32) {
  const bool wide = p.c.dtype() == DType::F64;
  const bool fast = tf32 && p.a.dtype() == DType::F32;
  cublasLtMatmulDesc_t raw = nullptr;
  KINTSUGI_CUBLAS(cublasLtMatmulDescCreate(&raw,
                                           wide   ? CUBLAS_COMPUTE_64F
                                           : fast ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                  : CUBLAS_COMPUTE_32F,
                                           wide ? CUDA_R_64F : CUDA_R_32F));
  Operation operation(raw);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_type(p.bias.dtype()));
  if (p.beside) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.beside.stride(0));
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
  set_pointers(operation, p);
  return operation;
}

Plan describe(const Problem& p, bool tf32) {
  return {.operation = operation_of(p, tf32),
          .first = layout_of(p.b),
          .second = layout_of(p.a),
          .added = layout_of(p.added ? p.added : p.c),
          .c = layout_of(p.c),
          .supported = false,
          .algorithm = {}};
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

// Device memory for the length of a measurement; none where there is none.
struct Loan {
  explicit Loan(std::size_t bytes) {
    if (cudaMalloc(&address, bytes) != cudaSuccess) {
      cudaGetLastError();
      address = nullptr;
    }
  }
  ~Loan() { cudaFree(address); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  void* address = nullptr;
};

struct Timer {
  Timer() {
    KINTSUGI_CUDA(cudaEventCreate(&begin));
    KINTSUGI_CUDA(cudaEventCreate(&end));
  }
  ~Timer() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  template <class F>
  float ms(cudaStream_t stream, int repetitions, const F& call) const {
    KINTSUGI_CUDA(cudaEventRecord(begin, stream));
    for (int i = 0; i < repetitions; ++i) call();
    KINTSUGI_CUDA(cudaEventRecord(end, stream));
    KINTSUGI_CUDA(cudaEventSynchronize(end));
    float elapsed = 0;
    KINTSUGI_CUDA(cudaEventElapsedTime(&elapsed, begin, end));
    return elapsed / static_cast<float>(repetitions);
  }

  cudaEvent_t begin = nullptr, end = nullptr;
};

}  // namespace

struct Matmul::Parts {
  explicit Parts(const MatmulSettings& settings)
      : settings(settings),
        cache(settings.cache_file,
              fmt::format("{}, cuBLASLt {}{}", settings.gpu, cublasLtGetVersion(),
                          settings.tf32 ? ", TF32" : "")) {
    KINTSUGI_CUBLAS(cublasLtCreate(&handle));
    workspace = device_allocate(kWorkspaceBytes);
  }
  ~Parts() {
    cudaFree(workspace);
    cublasLtDestroy(handle);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // With `apart`, the same result by other calls, a plan is supported only where it is faster.
  Plan& plan_for(const Context& context, const Problem& problem,
                 const std::function<void()>& apart = {});
  std::vector<cublasLtMatmulAlgo_t> propose(const Plan& plan, const Problem& problem) const;
  bool usable(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;
  cublasStatus_t launch(const Context& context, const Plan& plan, const Problem& problem,
                        const cublasLtMatmulAlgo_t& algorithm, void* c) const;
  cublasLtMatmulAlgo_t fastest(const Context& context, const Plan& plan, const Problem& problem,
                               const std::vector<cublasLtMatmulAlgo_t>& candidates) const;
  bool worth_fusing(const Context& context, const Plan& plan, const Problem& problem,
                    const std::function<void()>& apart) const;

  MatmulSettings settings;
  TuningCache cache;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;
};

std::vector<cublasLtMatmulAlgo_t> Matmul::Parts::propose(const Plan& plan, const Problem& p) const {
  cublasLtMatmulPreference_t raw = nullptr;
  KINTSUGI_CUBLAS(cublasLtMatmulPreferenceCreate(&raw));
  const Preference preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Parts of a long sum are never added in 16 bits.
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
      handle, plan.operation.get(), plan.first.get(), plan.second.get(), plan.added.get(),
      plan.c.get(), preference.get(), kCandidates, results.data(), &found);
  std::vector<cublasLtMatmulAlgo_t> candidates;
  if (status != CUBLAS_STATUS_SUCCESS) return candidates;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= kWorkspaceBytes)
      candidates.push_back(results[i].algo);
  return candidates;
}

bool Matmul::Parts::usable(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, plan.operation.get(), plan.first.get(), plan.second.get(),
                              plan.added.get(), plan.c.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes;
}

cublasStatus_t Matmul::Parts::launch(const Context& context, const Plan& plan, const Problem& p,
                                     const cublasLtMatmulAlgo_t& algorithm, void* c) const {
  const float one = 1.0f, zero = 0.0f;
  const double wide_one = 1.0, wide_zero = 0.0;
  const bool wide = p.c.dtype() == DType::F64;
  const void* alpha = wide ? static_cast<const void*>(&wide_one) : &one;
  const void* beta = p.added ? alpha : wide ? static_cast<const void*>(&wide_zero) : &zero;
  const void* added = p.added && !p.in_place() ? p.added.data() : c;
  return cublasLtMatmul(handle, plan.operation.get(), alpha, p.b.data(), plan.first.get(),
                        p.a.data(), plan.second.get(), beta, added, plan.added.get(), c,
                        plan.c.get(), &algorithm, workspace, kWorkspaceBytes, context.stream);
}

// Times the candidates on the real operands. A product that reads what it writes runs on a copy of
// it.
cublasLtMatmulAlgo_t Matmul::Parts::fastest(
    const Context& context, const Plan& plan, const Problem& p,
    const std::vector<cublasLtMatmulAlgo_t>& candidates) const {
  const std::size_t bytes = static_cast<std::size_t>((count_of(p.c) - 1) * between(p.c) +
                                                     (p.m - 1) * leading(p.c) + p.n) *
                            size_of(p.c.dtype());
  const Loan copy(p.in_place() ? bytes : 1);
  if (copy.address == nullptr) return candidates.front();
  void* c = p.in_place() ? copy.address : p.c.data();
  if (p.in_place())
    KINTSUGI_CUDA(cudaMemcpyAsync(c, p.c.data(), bytes, cudaMemcpyDeviceToDevice, context.stream));

  const Timer timer;
  const auto time_ms = [&](std::size_t i, int repetitions) {
    return timer.ms(context.stream, repetitions,
                    [&] { KINTSUGI_CUBLAS(launch(context, plan, p, candidates[i], c)); });
  };
  std::vector<std::pair<float, std::size_t>> times;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (launch(context, plan, p, candidates[i], c) != CUBLAS_STATUS_SUCCESS) continue;
    const float once = time_ms(i, 1);
    const int repetitions = std::clamp(static_cast<int>(1.0f / std::max(once, 1e-3f)), 1, 20);
    times.emplace_back(time_ms(i, repetitions), i);
  }
  if (times.empty()) return candidates.front();
  std::sort(times.begin(), times.end());
  // The best few again, for longer: the clock and the caches have settled by now.
  times.resize(std::min<std::size_t>(times.size(), 3));
  for (auto& [time, i] : times) {
    const int repetitions = std::clamp(static_cast<int>(4.0f / std::max(time, 1e-3f)), 2, 50);
    time = time_ms(i, repetitions);
  }
  return candidates[std::min_element(times.begin(), times.end())->second];
}

bool Matmul::Parts::worth_fusing(const Context& context, const Plan& plan, const Problem& p,
                                 const std::function<void()>& apart) const {
  const auto fused = [&] { KINTSUGI_CUBLAS(launch(context, plan, p, plan.algorithm, p.c.data())); };
  apart();  // tunes its own product first
  const Timer timer;
  const int repetitions = std::clamp(
      static_cast<int>(4.0f / std::max(timer.ms(context.stream, 1, fused), 1e-3f)), 2, 50);
  float fused_ms = 0, apart_ms = 0;
  for (int round = 0; round < 2; ++round) {  // in turn: the clock drifts
    fused_ms += timer.ms(context.stream, repetitions, fused);
    apart_ms += timer.ms(context.stream, repetitions, apart);
  }
  return fused_ms < apart_ms;
}

Plan& Matmul::Parts::plan_for(const Context& context, const Problem& p,
                              const std::function<void()>& apart) {
  const Key key = key_of(p);
  const auto known = plans.find(key);
  if (known != plans.end()) return known->second;

  Plan plan = describe(p, settings.tf32);
  const std::string name = fmt::format("{}", fmt::join(key, " "));
  if (const auto text = cache.find(name)) {
    const auto algorithm = parse_algorithm(*text);
    plan.supported = algorithm && usable(plan, *algorithm);
    if (plan.supported) plan.algorithm = *algorithm;
    if (plan.supported || *text == kApart) return plans.emplace(key, std::move(plan)).first->second;
  }

  const std::vector<cublasLtMatmulAlgo_t> candidates = propose(plan, p);
  if (!candidates.empty()) {
    plan.supported = !apart;
    plan.algorithm = candidates.front();
    // Under capture nothing can be timed: the first proposal serves, for this process only.
    if (settings.tune && !is_capturing(context.stream)) {
      if (candidates.size() > 1) plan.algorithm = fastest(context, plan, p, candidates);
      plan.supported = !apart || worth_fusing(context, plan, p, apart);
      cache.store(name, plan.supported ? algorithm_text(plan.algorithm) : kApart);
    }
  }
  return plans.emplace(key, std::move(plan)).first->second;
}

Matmul::Matmul(const MatmulSettings& settings) : parts_(std::make_unique<Parts>(settings)) {}
Matmul::~Matmul() = default;
std::size_t Matmul::own_bytes() const { return kWorkspaceBytes; }

void Matmul::run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                 const MatmulOptions& o) {
  const int rows = rows_of(c), columns = rows + 1;
  KINTSUGI_CHECK(
      (rows == 0 || (rows == 1 && !o.bias && !o.residual && !o.gelu && !o.gelu_input)) &&
          a.rank() == c.rank() && b.rank() == c.rank() && count_of(a) == count_of(c) &&
          count_of(b) == count_of(c) &&
          a.extent(o.transpose_a ? columns : rows) == c.extent(rows) &&
          b.extent(o.transpose_b ? rows : columns) == c.extent(columns) &&
          b.extent(o.transpose_b ? columns : rows) == a.extent(o.transpose_a ? rows : columns) &&
          (!o.bias || o.bias.elements() == c.extent(columns)) &&
          (!o.residual || o.residual.shape() == c.shape()),
      "matmul {} = {}{} x {}{}", to_string(c.shape()), to_string(a.shape()),
      o.transpose_a ? "^T" : "", to_string(b.shape()), o.transpose_b ? "^T" : "");
  KINTSUGI_CHECK(a.dtype() == b.dtype() &&
                     (c.dtype() == a.dtype() || c.dtype() == accumulator_of(a.dtype())) &&
                     (!o.residual || o.residual.dtype() == c.dtype()),
                 "matmul of {} and {} into {}", to_string(a.dtype()), to_string(b.dtype()),
                 to_string(c.dtype()));
  KINTSUGI_CHECK(!(o.accumulate && (o.bias || o.residual)), "matmul accumulates or adds, not both");
  if (c.elements() == 0) return;
  if (o.gelu || o.gelu_input) return run_gelu(context, c, a, b, o);

  const Problem problem(c, a, b, o);
  // A bias at an odd address, or in double, is added by our own kernel; so is one of unaligned
  // rows, where the library rounds the product before it adds.
  const bool aligned_rows = leading(c) * static_cast<std::int64_t>(size_of(c.dtype())) % 16 == 0;
  const bool fusable = !o.bias || (c.dtype() != DType::F64 && o.bias.dtype() == c.dtype() &&
                                   aligned_rows && aligned16(o.bias.data()));
  if (fusable) {
    Plan& plan = parts_->plan_for(context, problem);
    if (plan.supported) {
      set_pointers(plan.operation, problem);
      KINTSUGI_CUBLAS(parts_->launch(context, plan, problem, plan.algorithm, c.data()));
      return;
    }
  }
  KINTSUGI_CHECK(o.bias, "cuBLASLt has no algorithm for matmul {} = {}{} x {}{} in {}",
                 to_string(c.shape()), to_string(a.shape()), o.transpose_a ? "^T" : "",
                 to_string(b.shape()), o.transpose_b ? "^T" : "", to_string(a.dtype()));
  const DType precise = accumulator_of(c.dtype());
  const Tensor product(
      context.workspace.get(static_cast<std::size_t>(c.elements()) * size_of(precise),
                            context.stream),
      precise, c.shape());
  run(context, product, a, b, {.transpose_a = o.transpose_a, .transpose_b = o.transpose_b});
  finish_product(context, c, product, o.bias, o.residual);
}

void Matmul::run_gelu(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                      const MatmulOptions& o) {
  const Tensor& other = o.gelu ? o.gelu : o.gelu_input;
  KINTSUGI_CHECK(!(o.gelu && o.gelu_input) && !o.accumulate && !o.residual &&
                     other.shape() == c.shape() && other.dtype() == c.dtype(),
                 "matmul {} with a gelu of {}", to_string(c.shape()), to_string(other.shape()));
  const auto apart = [&] {
    run(context, c, a, b,
        {.transpose_a = o.transpose_a, .transpose_b = o.transpose_b, .bias = o.bias});
    if (o.gelu)
      gelu_forward(context, o.gelu, c);
    else
      gelu_backward(context, c, c, o.gelu_input);
  };
  const bool fusable = size_of(c.dtype()) == 2 && c.contiguous() && other.contiguous() &&
                       c.extent(1) % 8 == 0 && aligned16(c.data()) && aligned16(other.data()) &&
                       (!o.bias || (o.bias.dtype() == c.dtype() && aligned16(o.bias.data())));
  if (!fusable) return apart();
  const Problem problem(c, a, b, o);
  Plan& plan = parts_->plan_for(context, problem, apart);
  if (!plan.supported) return apart();
  set_pointers(plan.operation, problem);
  KINTSUGI_CUBLAS(parts_->launch(context, plan, problem, plan.algorithm, problem.c.data()));
}

void matmul(const Context& context, Tensor c, Tensor a, Tensor b, const MatmulOptions& options) {
  context.matmul.run(context, c, a, b, options);
}

}  // namespace kintsugi::cuda
