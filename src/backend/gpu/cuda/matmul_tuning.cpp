#include "backend/gpu/cuda/matmul_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backend/gpu/cuda/native.h"

namespace kintsugi::gpu {
namespace {

constexpr int kCandidates = 16;
constexpr const char* kNotFused = "apart";  // in the cache: the fused GELU is not faster

template <class T>
void set(const lt::Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  KINTSUGI_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

// Temporary device memory for a measurement; address is nullptr if it cannot be allocated.
struct TemporaryMemory {
  explicit TemporaryMemory(std::size_t bytes) : address(try_allocate(bytes)) {}
  ~TemporaryMemory() { release(address); }
  TemporaryMemory(const TemporaryMemory&) = delete;
  TemporaryMemory& operator=(const TemporaryMemory&) = delete;
  void* const address;
};

struct Timer {
  ~Timer() {
    destroy(begin);
    destroy(end);
  }
  Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  template <class F>
  float ms(Stream stream, int repetitions, const F& call) const {
    record(begin, stream);
    for (int i = 0; i < repetitions; ++i) call();
    record(end, stream);
    synchronize(end);
    return static_cast<float>(elapsed_ms(begin, end)) / static_cast<float>(repetitions);
  }

  const Event begin = create_event(), end = create_event();
};

}  // namespace

MatmulPlans::MatmulPlans(const MatmulSettings& settings)
    : settings_(settings),
      cache_(settings.cache_file,
             fmt::format("{}, cuBLASLt {}{}", settings.gpu, cublasLtGetVersion(),
                         settings.tf32 ? ", TF32" : "")) {
  KINTSUGI_CUBLAS(cublasLtCreate(&handle_));
  workspace_ = device_allocate(kMatmulWorkspaceBytes);
}

MatmulPlans::~MatmulPlans() {
  release(workspace_);
  cublasLtDestroy(handle_);
}

MatmulPlans::Algorithms MatmulPlans::propose(const MatmulPlan& plan, const MatmulProblem& p) const {
  cublasLtMatmulPreference_t raw = nullptr;
  KINTSUGI_CUBLAS(cublasLtMatmulPreferenceCreate(&raw));
  const lt::Preference preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMatmulWorkspaceBytes);
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
      handle_, plan.operation.get(), plan.first.get(), plan.second.get(), plan.added.get(),
      plan.c.get(), preference.get(), kCandidates, results.data(), &found);
  Algorithms candidates;
  if (status != CUBLAS_STATUS_SUCCESS) return candidates;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS &&
        results[i].workspaceSize <= kMatmulWorkspaceBytes)
      candidates.push_back(results[i].algo);
  return candidates;
}

bool MatmulPlans::usable(const MatmulPlan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, plan.operation.get(), plan.first.get(), plan.second.get(),
                              plan.added.get(), plan.c.get(), &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kMatmulWorkspaceBytes;
}

cublasStatus_t MatmulPlans::launch(const Context& context, const MatmulPlan& plan,
                                   const MatmulProblem& p, const cublasLtMatmulAlgo_t& algorithm,
                                   void* c) const {
  const double wide_alpha = p.scale, wide_beta = p.added ? p.added_scale : 0.0;
  const auto narrow_alpha = static_cast<float>(wide_alpha),
             narrow_beta = static_cast<float>(wide_beta);
  const bool wide = p.c.dtype() == DType::F64;
  const void* alpha = wide ? static_cast<const void*>(&wide_alpha) : &narrow_alpha;
  const void* beta = wide ? static_cast<const void*>(&wide_beta) : &narrow_beta;
  const void* added = p.added && !p.in_place() ? p.added.data() : c;
  return cublasLtMatmul(handle_, plan.operation.get(), alpha, p.b.data(), plan.first.get(),
                        p.a.data(), plan.second.get(), beta, added, plan.added.get(), c,
                        plan.c.get(), &algorithm, workspace_, kMatmulWorkspaceBytes,
                        native(context.stream));
}

// Times the candidates on the real operands. A matmul that also reads c runs on a copy of c.
cublasLtMatmulAlgo_t MatmulPlans::fastest(const Context& context, const MatmulPlan& plan,
                                          const MatmulProblem& p,
                                          const Algorithms& candidates) const {
  const std::size_t bytes = static_cast<std::size_t>((count_of(p.c) - 1) * batch_stride(p.c) +
                                                     (p.m - 1) * row_stride(p.c) + p.n) *
                            size_of(p.c.dtype());
  const TemporaryMemory copy(p.in_place() ? bytes : 1);
  if (copy.address == nullptr) return candidates.front();
  void* c = p.in_place() ? copy.address : p.c.data();
  if (p.in_place()) gpu::copy(c, p.c.data(), bytes, Copy::OnDevice, context.stream);

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

bool MatmulPlans::worth_fusing(const Context& context, const MatmulPlan& plan,
                               const MatmulProblem& p, const std::function<void()>& unfused) const {
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

MatmulPlan& MatmulPlans::plan_for(const Context& context, const MatmulProblem& p,
                                  const std::function<void()>& unfused) {
  const MatmulKey key = key_of(p);
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;

  MatmulPlan plan = describe(p, settings_.tf32);
  const std::string name = cache_name(p);
  if (const auto text = cache_.find(name)) {
    const auto algorithm = parse_algorithm(*text);
    plan.supported = algorithm && usable(plan, *algorithm);
    if (plan.supported) plan.algorithm = *algorithm;
    if (plan.supported || *text == kNotFused)
      return plans_.emplace(key, std::move(plan)).first->second;
  }

  const Algorithms candidates = propose(plan, p);
  if (!candidates.empty()) {
    plan.supported = !unfused;
    plan.algorithm = candidates.front();
    // Nothing can be timed during capture: use the first proposal, and do not store it in the
    // cache_.
    if (settings_.tune && !is_capturing(context.stream)) {
      if (candidates.size() > 1) plan.algorithm = fastest(context, plan, p, candidates);
      plan.supported = !unfused || worth_fusing(context, plan, p, unfused);
      cache_.store(name, plan.supported ? algorithm_text(plan.algorithm) : kNotFused);
    }
  }
  return plans_.emplace(key, std::move(plan)).first->second;
}

bool MatmulPlans::run(const Context& context, const MatmulProblem& p,
                      const std::function<void()>& unfused) {
  const MatmulPlan& plan = plan_for(context, p, unfused);
  if (!plan.supported) return false;
  set_pointers(plan, p);
  KINTSUGI_CUBLAS(launch(context, plan, p, plan.algorithm, p.c.data()));
  return true;
}

std::string MatmulPlans::name() const { return fmt::format("cuBLASLt {}", cublasLtGetVersion()); }

std::unique_ptr<MatmulLibrary> make_matmul_library(const MatmulSettings& settings) {
  return std::make_unique<MatmulPlans>(settings);
}

}  // namespace kintsugi::gpu
