#include "plan/machines/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "core/statistics.h"

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;

// Seconds of one call: the best of three batches of calls, each about effort / 4 seconds long.
double time_of(Backend& backend, double effort, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_per_call = [&](int calls) {
    backend.synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    backend.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / calls;
  };
  seconds_per_call(1);
  const double once = seconds_per_call(1);
  const int calls = static_cast<int>(std::clamp(effort / 4 / std::max(once, 1e-9), 1.0, 1000.0));
  double best = seconds_per_call(calls);
  for (int i = 0; i < 2; ++i) best = std::min(best, seconds_per_call(calls));
  return best;
}

Software this_engine() { return {.host_us = 0, .collective_host_us = 0}; }

double modelled(const GpuSpec& gpu, const TracedOperation& o) {
  switch (o.kind) {
    case Kind::Matmul:
      return matmul_s(gpu, this_engine(), o);
    case Kind::Memory:
      return memory_s(gpu, this_engine(), o.bytes);
    default:
      return attention_s(gpu, this_engine(), o);
  }
}

struct MatmulShape {
  std::int64_t m, n, k;
};

// Five matmuls, attention forward and backward with two sizes of heads, and two copies.
constexpr std::int64_t kMeasuredOperations = 11;

}  // namespace

std::vector<MeasuredOperation> measure_operations(Backend& backend, DType precision,
                                                  std::int64_t largest, double effort,
                                                  const ProgressCall& progress) {
  std::vector<MeasuredOperation> measured;
  Arena arena(backend);
  const auto allocate = [&](Shape shape, DType dtype) {
    const Tensor x = arena.allocate(Region::Workspace, "calibration", dtype, shape);
    backend.fill(x, 0.01);
    return x;
  };
  const auto add = [&](const TracedOperation& operation, const std::function<void()>& call) {
    const double seconds = time_of(backend, effort, call);
    measured.push_back({operation, seconds});
    if (progress) progress(std::ssize(measured), kMeasuredOperations);
  };
  const double width = static_cast<double>(size_of(precision));
  const std::int64_t d = largest;
  for (const MatmulShape& p : {MatmulShape{d, d, d},
                               {d, d / 2, d / 2},
                               {d / 2, 2 * d, d / 4},
                               {d / 4, d, d / 2},
                               {d / 4, d / 4, d}}) {
    const Tensor a = allocate({p.m, p.k}, precision), b = allocate({p.n, p.k}, precision),
                 c = allocate({p.m, p.n}, precision);
    const double m = static_cast<double>(p.m), n = static_cast<double>(p.n),
                 k = static_cast<double>(p.k);
    TracedOperation o{.kind = Kind::Matmul, .dtype = precision, .name = "matmul"};
    o.flops = 2 * m * n * k;
    o.bytes = width * (m * k + n * k + m * n);
    o.m = p.m, o.n = p.n, o.k = p.k;
    add(o, [&] { backend.matmul(c, a, b, {.transpose_b = true}); });
  }
  for (const std::int64_t dim : {64, 128}) {
    const std::int64_t length = d / 2, heads = std::max<std::int64_t>(1, d / 512);
    const Shape shape{1, length, heads, dim};
    const Tensor q = allocate(shape, precision), k = allocate(shape, precision),
                 v = allocate(shape, precision), out = allocate(shape, precision),
                 dq = allocate(shape, precision), dk = allocate(shape, precision),
                 dv = allocate(shape, precision),
                 lse = allocate({1, heads, length}, accumulator_of(precision));
    const AttentionOptions options{.scale = 0.1};
    const double pairs = static_cast<double>(length) * static_cast<double>(length + 1) / 2 *
                         static_cast<double>(heads * dim);
    TracedOperation o{
        .kind = Kind::AttentionForward, .dtype = precision, .name = "attention_forward"};
    o.flops = 4 * pairs;
    o.bytes = 4 * static_cast<double>(q.bytes());
    o.m = heads, o.n = o.k = length, o.head_dim = dim;
    add(o, [&] { backend.attention_forward(out, lse, q, k, v, options); });
    o.kind = Kind::AttentionBackward;
    o.name = "attention_backward";
    o.flops = 10 * pairs;
    o.bytes *= 2;
    add(o, [&] { backend.attention_backward(dq, dk, dv, out, out, lse, q, k, v, options); });
  }
  for (const std::int64_t elements : {std::int64_t{1}, d * d * 4}) {
    const Tensor from = allocate({elements}, DType::F32), to = allocate({elements}, DType::F32);
    TracedOperation o{.kind = Kind::Memory, .name = elements == 1 ? "smallest kernel" : "copy"};
    o.bytes = 2 * static_cast<double>(from.bytes());
    add(o, [&] { backend.copy(to, from); });
  }
  return measured;
}

Machine calibrated(Machine machine, const std::vector<MeasuredOperation>& measured) {
  GpuSpec& gpu = machine.gpu;
  for (const MeasuredOperation& m : measured)
    if (m.operation.kind == Kind::Memory && m.operation.bytes < 64) gpu.launch_us = m.seconds * 1e6;
  // Memory first: the models of the other operations use its bandwidth.
  const auto fit = [&](auto&& matches, double& efficiency, double most,
                       const std::function<void(double)>& raise) {
    GpuSpec ideal = gpu;
    std::vector<double> ratios;
    efficiency = 1;
    ideal = gpu;
    for (const MeasuredOperation& m : measured) {
      if (!matches(m.operation)) continue;
      const double launch = gpu.launch_us * 1e-6;
      ratios.push_back((modelled(ideal, m.operation) - launch) /
                       std::max(m.seconds - launch, 1e-9));
    }
    if (ratios.empty()) return;
    const double ratio = median(ratios);
    if (ratio > most) raise(ratio / most);
    efficiency = std::clamp(ratio, 1e-6, most);
  };
  fit([](const TracedOperation& o) { return o.kind == Kind::Memory && o.bytes >= 64; },
      gpu.memory_efficiency, 1, [&](double times) { gpu.memory_gb_s *= times; });
  fit([](const TracedOperation& o) { return o.kind == Kind::Matmul; }, gpu.gemm_efficiency, 1,
      [&](double times) {
        gpu.bf16_tflops *= times;
        gpu.fp16_tflops *= times;
        gpu.fp32_tflops *= times;
      });
  if (std::any_of(measured.begin(), measured.end(),
                  [](const MeasuredOperation& m) { return m.operation.kind == Kind::Matmul; }))
    std::erase(machine.assumed, "gpu.gemm_efficiency");
  fit(
      [](const TracedOperation& o) {
        return o.kind == Kind::AttentionForward || o.kind == Kind::AttentionBackward;
      },
      gpu.attention_efficiency, 1, [](double) {});
  return machine;
}

std::string calibration_table(const Machine& machine,
                              const std::vector<MeasuredOperation>& measured) {
  std::string text = fmt::format("{:<20}{:>24}{:>14}{:>12}{:>14}{:>9}\n", "operation", "shape",
                                 "measured us", "TFLOP/s", "modelled us", "error");
  for (const MeasuredOperation& m : measured) {
    const TracedOperation& o = m.operation;
    const std::string shape = o.kind == Kind::Memory ? fmt::format("{:.3g} bytes", o.bytes)
                                                     : fmt::format("{} x {} x {}", o.m, o.n, o.k);
    const double model = modelled(machine.gpu, o);
    text += fmt::format("{:<20}{:>24}{:>14.1f}{:>12.3f}{:>14.1f}{:>8.1f}%\n", o.name, shape,
                        m.seconds * 1e6, o.flops / m.seconds / 1e12, model * 1e6,
                        100 * (model / m.seconds - 1));
  }
  return text;
}

}  // namespace kintsugi
