#include "backend/gpu/matmul_plans.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "core/error.h"

namespace kintsugi::gpu {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 20;
constexpr std::uintptr_t kAlignment = 16;   // the alignment that the fastest kernels need
constexpr const char* kNotFused = "apart";  // in the cache: the fused GELU is not faster

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

std::string algorithm_text(std::size_t library, const MatmulAlgorithm& algorithm) {
  return fmt::format("{}{:016x}", library == 0 ? "" : fmt::format("{}: ", library),
                     fmt::join(algorithm, " "));
}

struct StoredAlgorithm {
  std::size_t library = 0;  // the first one's number is left out
  MatmulAlgorithm words = {};
};
std::optional<StoredAlgorithm> parse_algorithm(const std::string& text) {
  StoredAlgorithm stored;
  std::istringstream stream(text);
  if (text.find(':') != std::string::npos) {
    char colon = 0;
    if (!(stream >> stored.library >> colon)) return std::nullopt;
  }
  for (std::uint64_t& word : stored.words)
    if (!(stream >> std::hex >> word)) return std::nullopt;
  return stored;
}

std::string names_of(const std::vector<std::unique_ptr<MatmulLibrary>>& libraries) {
  std::vector<std::string> names;
  for (const auto& library : libraries) names.push_back(library->name());
  return fmt::format("{}", fmt::join(names, ", "));
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

std::int64_t alignment_of(const Tensor& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(x.data()) |
                       static_cast<std::uintptr_t>(batch_stride(x)) * size_of(x.dtype());
  std::uintptr_t alignment = kAlignment;
  while (address % alignment != 0) alignment /= 2;
  return static_cast<std::int64_t>(alignment);
}

MatmulPlans::MatmulPlans(const MatmulSettings& settings)
    : settings_(settings),
      libraries_(matmul_libraries(settings)),
      cache_(settings.cache_file, fmt::format("{}, {}{}", settings.gpu, names_of(libraries_),
                                              settings.tf32 ? ", TF32" : "")),
      scratch_{device_allocate(kScratchBytes), kScratchBytes} {}

MatmulPlans::~MatmulPlans() { release(scratch_.address); }

std::string MatmulPlans::name() const { return names_of(libraries_); }

void MatmulPlans::launch(const Context& context, const Plan& plan, const MatmulProblem& p,
                         const MatmulAlgorithm& algorithm, void* c) const {
  const std::string why = plan.matmul->launch(p, algorithm, c, scratch_, context.stream);
  if (!why.empty()) failure("{}: {} in matmul {}", name(), why, cache_name(p));
}

// Times the candidates on the real operands. A matmul that also reads c runs on a copy of c.
MatmulAlgorithm MatmulPlans::fastest(const Context& context, const Plan& plan,
                                     const MatmulProblem& p, const Algorithms& candidates) const {
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
                    [&] { launch(context, plan, p, candidates[i], c); });
  };
  std::vector<std::pair<float, std::size_t>> times;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!plan.matmul->launch(p, candidates[i], c, scratch_, context.stream).empty()) continue;
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

bool MatmulPlans::worth_fusing(const Context& context, const Plan& plan, const MatmulProblem& p,
                               const std::function<void()>& unfused) const {
  const auto fused = [&] { launch(context, plan, p, plan.algorithm, p.c.data()); };
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

// Takes the algorithm of an earlier run, if its library still has it.
bool MatmulPlans::recall(Plan& plan, const MatmulProblem& p, const std::string& text) {
  if (text == kNotFused) return true;
  const auto stored = parse_algorithm(text);
  if (!stored || stored->library >= libraries_.size()) return false;
  plan.matmul = libraries_[stored->library]->describe(p);
  plan.algorithm = stored->words;
  plan.supported = plan.matmul && plan.matmul->is_usable(plan.algorithm, scratch_.bytes);
  return plan.supported;
}

void MatmulPlans::choose(Plan& plan, const Context& context, const MatmulProblem& p,
                         const std::function<void()>& unfused) {
  for (std::size_t i = 0; i < libraries_.size(); ++i) {
    plan.matmul = libraries_[i]->describe(p);
    if (!plan.matmul) continue;
    const Algorithms candidates = plan.matmul->propose(p, scratch_.bytes);
    if (candidates.empty()) continue;
    plan.supported = !unfused;
    plan.algorithm = candidates.front();
    // Nothing can be timed during capture: use the first proposal, and do not store it.
    if (!settings_.tune || is_capturing(context.stream)) return;
    if (candidates.size() > 1) plan.algorithm = fastest(context, plan, p, candidates);
    plan.supported = !unfused || worth_fusing(context, plan, p, unfused);
    return cache_.store(cache_name(p),
                        plan.supported ? algorithm_text(i, plan.algorithm) : kNotFused);
  }
}

MatmulPlans::Plan& MatmulPlans::plan_for(const Context& context, const MatmulProblem& p,
                                         const std::function<void()>& unfused) {
  const MatmulKey key = key_of(p);
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  Plan plan;
  const auto text = cache_.find(cache_name(p));
  if (!text || !recall(plan, p, *text)) choose(plan, context, p, unfused);
  return plans_.emplace(key, std::move(plan)).first->second;
}

bool MatmulPlans::run(const Context& context, const MatmulProblem& p,
                      const std::function<void()>& unfused) {
  const Plan& plan = plan_for(context, p, unfused);
  if (!plan.supported) return false;
  plan.matmul->set_pointers(p);
  launch(context, plan, p, plan.algorithm, p.c.data());
  return true;
}

}  // namespace kintsugi::gpu
