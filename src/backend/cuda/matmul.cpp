// Matmuls through cuBLASLt, which is column-major: our row-major c = a b is its c^T = b^T a^T, so
// the operands are swapped and nothing is transposed in memory.
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

#include "backend/cuda/few_rows.h"
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
constexpr const char* kNotFused = "apart";  // in the cache: the fused GELU is not faster
constexpr std::uintptr_t kAlignment = 16;   // the alignment that the fastest kernels need

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
    default:
      failure("matmul does not support {}", to_string(dtype));
  }
}

// Operands are (rows, columns), or (count, rows, columns) for a batch of `count` matmuls.
int rows_of(const Tensor& x) { return x.rank() - 2; }
std::int64_t row_stride(const Tensor& x) { return x.stride(rows_of(x)); }
std::int64_t count_of(const Tensor& x) { return x.rank() == 3 ? x.extent(0) : 1; }
std::int64_t batch_stride(const Tensor& x) { return x.rank() == 3 ? x.stride(0) : 0; }

std::int64_t alignment_of(const Tensor& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data()) |
                       static_cast<std::uintptr_t>(batch_stride(x)) * size_of(x.dtype());
  std::uintptr_t alignment = kAlignment;
  while (address % alignment != 0) alignment /= 2;
  return static_cast<std::int64_t>(alignment);
}

// One matmul with its operands. `added` is the tensor that is added to op(a) op(b): c itself, the
// residual, or none. `gelu_input` is the input of a fused GELU, which the GELU writes and its
// gradient reads.
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
        scale(o.scale),
        added_scale(o.accumulate ? 1.0 : o.residual_scale),
        gelu_input(o.gelu ? c : o.gelu_input),
        epilogue(o.gelu         ? Epilogue::Gelu
                 : o.gelu_input ? Epilogue::GeluGradient
                                : Epilogue::None) {}

  bool in_place() const { return added && added.data() == c.data(); }

  Tensor c, a, b, bias;
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  Tensor added;
  double scale, added_scale;  // of op(a) op(b) and of `added`
  Tensor gelu_input;
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
          p.added ? alignment_of(p.added) : 0};
}

Layout layout_of(const Tensor& x) {
  cublasLtMatrixLayout_t layout = nullptr;
  // Our rows are the library's columns.
  KINTSUGI_CUBLAS(cublasLtMatrixLayoutCreate(
      &layout, cuda_type(x.dtype()), static_cast<std::uint64_t>(x.extent(rows_of(x) + 1)),
      static_cast<std::uint64_t>(x.extent(rows_of(x))), row_stride(x)));
  Layout owned(layout);
  const auto count = static_cast<std::int32_t>(count_of(x));
  const std::int64_t stride = batch_stride(x);
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

// Sets the pointers that are part of the operation descriptor and change from call to call.
void set_pointers(const Operation& operation, const Problem& p) {
  if (p.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data());
  if (p.gelu_input) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.gelu_input.data());
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
  if (p.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.bias.dtype()));
  if (p.gelu_input) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.gelu_input.stride(0));
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

// Temporary device memory for a measurement; address is nullptr if it cannot be allocated.
struct TemporaryMemory {
  explicit TemporaryMemory(std::size_t bytes) {
    if (cudaMalloc(&address, bytes) != cudaSuccess) {
      cudaGetLastError();
      address = nullptr;
    }
  }
  ~TemporaryMemory() { cudaFree(address); }
  TemporaryMemory(const TemporaryMemory&) = delete;
  TemporaryMemory& operator=(const TemporaryMemory&) = delete;
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

struct Matmul::State {
  explicit State(const MatmulSettings& settings)
      : settings(settings),
        cache(settings.cache_file,
              fmt::format("{}, cuBLASLt {}{}", settings.gpu, cublasLtGetVersion(),
                          settings.tf32 ? ", TF32" : "")) {
    KINTSUGI_CUBLAS(cublasLtCreate(&handle));
    workspace = device_allocate(kWorkspaceBytes);
  }
  ~State() {
    cudaFree(workspace);
    cublasLtDestroy(handle);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // `unfused` computes the same result by separate calls. If it is given, the plan is supported
  // only if it is faster than `unfused`.
  Plan& plan_for(const Context& context, const Problem& problem,
                 const std::function<void()>& unfused = {});
  std::vector<cublasLtMatmulAlgo_t> propose(const Plan& plan, const Problem& problem) const;
  bool usable(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const;
  cublasStatus_t launch(const Context& context, const Plan& plan, const Problem& problem,
                        const cublasLtMatmulAlgo_t& algorithm, void* c) const;
  cublasLtMatmulAlgo_t fastest(const Context& context, const Plan& plan, const Problem& problem,
                               const std::vector<cublasLtMatmulAlgo_t>& candidates) const;
  bool worth_fusing(const Context& context, const Plan& plan, const Problem& problem,
                    const std::function<void()>& unfused) const;

  MatmulSettings settings;
  TuningCache cache;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, Plan> plans;
};

std::vector<cublasLtMatmulAlgo_t> Matmul::State::propose(const Plan& plan, const Problem& p) const {
  cublasLtMatmulPreference_t raw = nullptr;
  KINTSUGI_CUBLAS(cublasLtMatmulPreferenceCreate(&raw));
  const Preference preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
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
      handle, plan.operation.get(), plan.first.get(), plan.second.get(), plan.added.get(),
      plan.c.get(), preference.get(), kCandidates, results.data(), &found);
  std::vector<cublasLtMatmulAlgo_t> candidates;
  if (status != CUBLAS_STATUS_SUCCESS) return candidates;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= kWorkspaceBytes)
      candidates.push_back(results[i].algo);
  return candidates;
}

bool Matmul::State::usable(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, plan.operation.get(), plan.first.get(), plan.second.get(),
                              plan.added.get(), plan.c.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes;
}

cublasStatus_t Matmul::State::launch(const Context& context, const Plan& plan, const Problem& p,
                                     const cublasLtMatmulAlgo_t& algorithm, void* c) const {
  const double wide_alpha = p.scale, wide_beta = p.added ? p.added_scale : 0.0;
  const auto narrow_alpha = static_cast<float>(wide_alpha),
             narrow_beta = static_cast<float>(wide_beta);
  const bool wide = p.c.dtype() == DType::F64;
  const void* alpha = wide ? static_cast<const void*>(&wide_alpha) : &narrow_alpha;
  const void* beta = wide ? static_cast<const void*>(&wide_beta) : &narrow_beta;
  const void* added = p.added && !p.in_place() ? p.added.data() : c;
  return cublasLtMatmul(handle, plan.operation.get(), alpha, p.b.data(), plan.first.get(),
                        p.a.data(), plan.second.get(), beta, added, plan.added.get(), c,
                        plan.c.get(), &algorithm, workspace, kWorkspaceBytes, context.stream);
}

// Times the candidates on the real operands. A matmul that also reads c runs on a copy of c.
cublasLtMatmulAlgo_t Matmul::State::fastest(
    const Context& context, const Plan& plan, const Problem& p,
    const std::vector<cublasLtMatmulAlgo_t>& candidates) const {
  const std::size_t bytes = static_cast<std::size_t>((count_of(p.c) - 1) * batch_stride(p.c) +
                                                     (p.m - 1) * row_stride(p.c) + p.n) *
                            size_of(p.c.dtype());
  const TemporaryMemory copy(p.in_place() ? bytes : 1);
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
  // Times the best few again, for longer: clocks and caches have settled by now.
  times.resize(std::min<std::size_t>(times.size(), 3));
  for (auto& [time, i] : times) {
    const int repetitions = std::clamp(static_cast<int>(4.0f / std::max(time, 1e-3f)), 2, 50);
    time = time_ms(i, repetitions);
  }
  return candidates[std::min_element(times.begin(), times.end())->second];
}

bool Matmul::State::worth_fusing(const Context& context, const Plan& plan, const Problem& p,
                                 const std::function<void()>& unfused) const {
  const auto fused = [&] { KINTSUGI_CUBLAS(launch(context, plan, p, plan.algorithm, p.c.data())); };
  unfused();  // tunes its own matmul first
  const Timer timer;
  const int repetitions = std::clamp(
      static_cast<int>(4.0f / std::max(timer.ms(context.stream, 1, fused), 1e-3f)), 2, 50);
  float fused_ms = 0, unfused_ms = 0;
  for (int round = 0; round < 2; ++round) {  // alternating, because clocks drift
    fused_ms += timer.ms(context.stream, repetitions, fused);
    unfused_ms += timer.ms(context.stream, repetitions, unfused);
  }
  return fused_ms < unfused_ms;
}

Plan& Matmul::State::plan_for(const Context& context, const Problem& p,
                              const std::function<void()>& unfused) {
  const Key key = key_of(p);
  const auto known = plans.find(key);
  if (known != plans.end()) return known->second;

  Plan plan = describe(p, settings.tf32);
  const std::string name = fmt::format("{}", fmt::join(key, " "));
  if (const auto text = cache.find(name)) {
    const auto algorithm = parse_algorithm(*text);
    plan.supported = algorithm && usable(plan, *algorithm);
    if (plan.supported) plan.algorithm = *algorithm;
    if (plan.supported || *text == kNotFused)
      return plans.emplace(key, std::move(plan)).first->second;
  }

  const std::vector<cublasLtMatmulAlgo_t> candidates = propose(plan, p);
  if (!candidates.empty()) {
    plan.supported = !unfused;
    plan.algorithm = candidates.front();
    // Nothing can be timed during capture: use the first proposal, and do not store it in the
    // cache.
    if (settings.tune && !is_capturing(context.stream)) {
      if (candidates.size() > 1) plan.algorithm = fastest(context, plan, p, candidates);
      plan.supported = !unfused || worth_fusing(context, plan, p, unfused);
      cache.store(name, plan.supported ? algorithm_text(plan.algorithm) : kNotFused);
    }
  }
  return plans.emplace(key, std::move(plan)).first->second;
}

Matmul::Matmul(const MatmulSettings& settings) : state_(std::make_unique<State>(settings)) {}
Matmul::~Matmul() = default;
std::size_t Matmul::own_bytes() const { return kWorkspaceBytes; }

void Matmul::run(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                 const MatmulOptions& o) {
  const int rows = rows_of(c), columns = rows + 1;
  KINTSUGI_CHECK(
      (rows == 0 || (rows == 1 && !o.bias && !o.gelu && !o.gelu_input)) && a.rank() == c.rank() &&
          b.rank() == c.rank() && count_of(a) == count_of(c) && count_of(b) == count_of(c) &&
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
  KINTSUGI_CHECK(!(o.accumulate && (o.bias || o.residual)),
                 "matmul: accumulate cannot be combined with a bias or a residual");
  KINTSUGI_CHECK((o.scale == 1 && o.residual_scale == 1) || !(o.bias || o.gelu || o.gelu_input),
                 "matmul: scales cannot be combined with a bias or GELU");
  if (c.elements() == 0) return;
  if (matmul_few_rows(context, c, a, b, o)) return;
  if (o.swiglu) {
    MatmulOptions without = o;
    without.swiglu = {};
    run(context, c, a, b, without);
    return swiglu_forward(context, o.swiglu, c);
  }
  if (o.gelu || o.gelu_input) return run_gelu(context, c, a, b, o);

  const Problem problem(c, a, b, o);
  // Our own kernel adds the bias if it is unaligned or in double, or if the rows are unaligned,
  // where cuBLASLt rounds before it adds the bias.
  const bool aligned_rows = row_stride(c) * static_cast<std::int64_t>(size_of(c.dtype())) % 16 == 0;
  const bool fusable = !o.bias || (c.dtype() != DType::F64 && o.bias.dtype() == c.dtype() &&
                                   aligned_rows && aligned16(o.bias.data()));
  if (fusable) {
    Plan& plan = state_->plan_for(context, problem);
    if (plan.supported) {
      set_pointers(plan.operation, problem);
      KINTSUGI_CUBLAS(state_->launch(context, plan, problem, plan.algorithm, c.data()));
      return;
    }
  }
  KINTSUGI_CHECK(o.bias, "cuBLASLt has no algorithm for matmul {} = {}{} x {}{} in {}",
                 to_string(c.shape()), to_string(a.shape()), o.transpose_a ? "^T" : "",
                 to_string(b.shape()), o.transpose_b ? "^T" : "", to_string(a.dtype()));
  const DType precise = accumulator_of(c.dtype());
  const Tensor unbiased(
      context.workspace.get(static_cast<std::size_t>(c.elements()) * size_of(precise),
                            context.stream),
      precise, c.shape());
  run(context, unbiased, a, b, {.transpose_a = o.transpose_a, .transpose_b = o.transpose_b});
  add_bias(context, c, unbiased, o.bias, o.residual);
}

void Matmul::run_gelu(const Context& context, const Tensor& c, const Tensor& a, const Tensor& b,
                      const MatmulOptions& o) {
  const Tensor& other = o.gelu ? o.gelu : o.gelu_input;
  KINTSUGI_CHECK(!(o.gelu && o.gelu_input) && !o.accumulate && !o.residual &&
                     other.shape() == c.shape() && other.dtype() == c.dtype(),
                 "matmul {} with a fused GELU of {}", to_string(c.shape()),
                 to_string(other.shape()));
  const auto unfused = [&] {
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
  if (!fusable) return unfused();
  const Problem problem(c, a, b, o);
  Plan& plan = state_->plan_for(context, problem, unfused);
  if (!plan.supported) return unfused();
  set_pointers(plan.operation, problem);
  KINTSUGI_CUBLAS(state_->launch(context, plan, problem, plan.algorithm, problem.c.data()));
}

void matmul(const Context& context, Tensor c, Tensor a, Tensor b, const MatmulOptions& options) {
  context.matmul.run(context, c, a, b, options);
}

}  // namespace kintsugi::cuda
