#include "plan/machines/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/statistics.h"
#include "plan/search/planner.h"

namespace kintsugi {
namespace {

using Kind = TracedOperation::Kind;
using Operations = std::vector<const MeasuredOperation*>;

// The host launches ahead of what is measured.
constexpr Software kThisEngine = {.host_us = 0, .collective_host_us = 0};
constexpr double kMostScale = 1.3;         // by which a profile changes a step, or the step is odd
constexpr double kLeastDifference = 0.01;  // of an operation that gets a speed of its own
constexpr double kLeastShare = 0.0005;     // of the steps, for the same
constexpr double kListed = 0.001;          // of a step: smaller operations are not in tables

double modelled_s(const GpuSpec& gpu, const MeasuredOperation& measured) {
  double seconds = 0;
  for (const TracedOperation& part : measured.parts) seconds += operation_s(gpu, kThisEngine, part);
  return seconds;
}

double predicted_s(const Machine& machine, const MeasuredTraining& training) {
  const std::int64_t micro = training.micro_batch > 0 ? training.micro_batch : training.job.batch;
  return Planner(training.job, machine).evaluate({.micro_batch = micro}).step_s;
}

// ---- from spans to operations

using CallKey = std::tuple<std::string, std::int64_t, std::int64_t>;  // name, FLOP, bytes
using Call = std::vector<TracedOperation>;

// The calls of a trace in order. One that counts as several operations, as retention does, ends
// with its memory-bound one.
std::map<CallKey, std::vector<Call>> calls_of(const OperationTrace& trace) {
  std::set<std::string> with_memory;
  for (const TracedOperation& o : trace.operations)
    if (o.kind == Kind::Memory) with_memory.insert(o.name);
  std::map<CallKey, std::vector<Call>> calls;
  std::map<std::string, Call> open;
  for (const TracedOperation& o : trace.operations) {
    Call& call = open[o.name];
    call.push_back(o);
    if (o.kind != Kind::Memory && with_memory.contains(o.name)) continue;
    double flops = 0, bytes = 0;
    for (const TracedOperation& part : call) flops += part.flops, bytes += part.bytes;
    calls[{o.name, std::llround(flops), std::llround(bytes)}].push_back(std::exchange(call, {}));
  }
  return calls;
}

// ---- fitting

// The value at which `mean_ratio`, which falls with it, is 1.
double solve(const std::function<double(double)>& mean_ratio) {
  double low = 1e-6, high = 1e3;
  for (int i = 0; i < 40; ++i) {
    const double middle = std::sqrt(low * high);
    (mean_ratio(middle) > 1 ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

// Mean of modelled / measured, weighted by the time that the operations take of a step.
double mean_ratio(const GpuSpec& gpu, const Operations& operations) {
  double sum = 0, shares = 0;
  for (const MeasuredOperation* o : operations) {
    sum += o->share * modelled_s(gpu, *o) / o->seconds;
    shares += o->share;
  }
  return sum / shares;
}

// Mean square of log(modelled / measured), weighted in the same way.
double mean_square(const GpuSpec& gpu, const Operations& operations) {
  double sum = 0;
  for (const MeasuredOperation* o : operations)
    sum += o->share * std::pow(std::log(modelled_s(gpu, *o) / o->seconds), 2);
  return sum;
}

// Sets the efficiency at which the operations take their times on average; more than 1 if the peak
// is too low.
void fit_unlimited(GpuSpec& gpu, double GpuSpec::*efficiency, const Operations& operations) {
  gpu.*efficiency = solve([&](double value) {
    gpu.*efficiency = value;
    return mean_ratio(gpu, operations);
  });
}

// The same, and raises the peaks.
void fit(GpuSpec& gpu, double GpuSpec::*efficiency, const Operations& operations,
         const std::vector<double GpuSpec::*>& peaks) {
  if (operations.empty()) return;
  fit_unlimited(gpu, efficiency, operations);
  for (double GpuSpec::*peak : peaks) gpu.*peak *= std::max(1.0, gpu.*efficiency);
  gpu.*efficiency = std::min(1.0, gpu.*efficiency);
}

// Sets the depth and, unless it is nullptr, the fill with which the fit of `efficiency` leaves the
// least error. All pairs are tried, because each makes up for the other to some degree.
void fit_shape(GpuSpec& gpu, double GpuSpec::*efficiency, double GpuSpec::*depth,
               double GpuSpec::*fill, const Operations& operations) {
  const std::vector<double> fills = {0, 0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5};
  GpuSpec best = gpu;
  double least = 1e300;
  for (double tried = 0; tried < 4000; tried = std::max(tried * 1.15, tried + 20))
    for (const double filled : fill != nullptr ? fills : std::vector{0.0}) {
      GpuSpec one = gpu;
      one.*depth = tried;
      if (fill != nullptr) one.*fill = filled;
      fit_unlimited(one, efficiency, operations);
      if (const double square = mean_square(one, operations); square < least)
        best = one, least = square;
    }
  gpu = best;
}

// Where the operations have different shapes: two that differ by 2 in the depth of their sums.
bool have_shapes(const Operations& operations) {
  if (operations.empty()) return false;
  const auto [least, most] =
      std::ranges::minmax(operations, {}, [](const MeasuredOperation* o) { return o->work().k; });
  return most->work().k >= 2 * least->work().k;
}

double step_error(const Machine& machine, const std::vector<MeasuredTraining>& trained) {
  double sum = 0;
  for (const MeasuredTraining& one : trained)
    sum += std::pow(std::log(predicted_s(machine, one) / one.step_s), 2);
  return sum;
}

// From the steps, because it changes operations of a model alike.
void fit_heat(Machine& machine, const std::vector<MeasuredTraining>& trained) {
  double best = 0, least = 1e300;
  for (double value = 0; value <= 0.6; value += 0.05) {
    machine.gpu.gemm_heat = value;
    if (const double error = step_error(machine, trained); error < least)
      best = value, least = error;
  }
  machine.gpu.gemm_heat = best;
}

void fit_speeds(GpuSpec& gpu, const std::map<std::string, Operations>& by_name) {
  for (const auto& [name, operations] : by_name) {
    double share = 0;
    for (const MeasuredOperation* o : operations) share += o->share;
    if (share < kLeastShare) continue;
    gpu.speeds.emplace_back(name, 1);
    const double speed = solve([&](double value) {
      gpu.speeds.back().second = value;
      return mean_ratio(gpu, operations);
    });
    gpu.speeds.back().second = speed;
    if (std::abs(speed - 1) < kLeastDifference) gpu.speeds.pop_back();
  }
}

bool is_attention(const TracedOperation& o) {
  return o.kind == Kind::AttentionForward || o.kind == Kind::AttentionBackward;
}

std::string kind_of(const MeasuredOperation& o) {
  const TracedOperation& work = o.work();
  const std::string kind = o.parts.size() > 1          ? work.name
                           : work.kind == Kind::Matmul ? "matmul"
                           : work.kind == Kind::Memory ? "memory-bound"
                                                       : "attention";
  return fmt::format("{} {}", kind, to_string(work.dtype));
}

// Four digits are more than what was measured has.
void round(GpuSpec& gpu) {
  const auto rounded = [](double& value) { value = std::stod(fmt::format("{:.4g}", value)); };
  for (double* value :
       {&gpu.bf16_tflops, &gpu.fp16_tflops, &gpu.fp32_tflops, &gpu.memory_gb_s,
        &gpu.gemm_efficiency, &gpu.attention_efficiency, &gpu.memory_efficiency, &gpu.gemm_depth,
        &gpu.attention_depth, &gpu.gemm_heat, &gpu.launch_us, &gpu.active_w})
    rounded(*value);
  for (auto& [name, speed] : gpu.speeds) rounded(speed);
}

std::string percent(double ratio) { return fmt::format("{:+.1f} %", 100 * ratio); }

}  // namespace

std::vector<MeasuredOperation> measured_operations(const std::vector<TraceSpan>& spans,
                                                   const OperationTrace& counted, int steps,
                                                   double step_s) {
  std::vector<const TraceSpan*> ordered;
  for (const TraceSpan& span : spans)
    if (span.kind == SpanKind::Operation) ordered.push_back(&span);
  std::ranges::stable_sort(ordered, {}, &TraceSpan::operation);
  const std::map<CallKey, std::vector<Call>> calls = calls_of(counted);
  std::map<CallKey, std::size_t> seen;
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, MeasuredOperation> sums;
  double found_s = 0, all_s = 0;
  for (const TraceSpan* span : ordered) {
    const double seconds = span->end_s - span->begin_s;
    all_s += seconds;
    const CallKey key{span->name.substr(0, span->name.find(' ')), std::llround(span->flops),
                      span->bytes};
    const auto same = calls.find(key);
    if (same == calls.end()) continue;
    found_s += seconds;
    MeasuredOperation& sum = sums[{span->name, std::llround(span->flops), span->bytes}];
    sum.name = span->name;
    sum.parts = same->second[seen[key]++ % same->second.size()];
    sum.calls += 1;
    sum.seconds += seconds;
  }
  if (found_s <= 0.9 * all_s)
    failure("the profile has {:.0f} % of its time in operations that the planner does not count",
            100 * (1 - found_s / all_s));
  const double device_s = steps * std::max(step_s - 1e-3 * Software{}.step_ms, step_s / 2);
  const double scale = std::clamp(device_s / all_s, 1 / kMostScale, kMostScale);
  std::vector<MeasuredOperation> measured;
  for (auto& [key, sum] : sums) {
    sum.share = sum.seconds / all_s;
    sum.seconds *= scale / sum.calls;
    sum.calls /= steps;
    if (sum.seconds > 0) measured.push_back(std::move(sum));
  }
  std::ranges::sort(measured, std::greater(), &MeasuredOperation::share);
  return measured;
}

Machine calibrated(Machine machine, const std::vector<MeasuredTraining>& trained,
                   double shortest_s) {
  GpuSpec& gpu = machine.gpu;
  gpu.speeds.clear();
  if (shortest_s > 0) gpu.launch_us = shortest_s * 1e6;
  Operations matmuls, attention, memory;
  std::map<std::string, Operations> by_name;
  std::vector<double> watts;
  for (const MeasuredTraining& training : trained) {
    if (training.watts > gpu.idle_w) watts.push_back(training.watts);
    for (const MeasuredOperation& o : training.operations) {
      const TracedOperation& work = o.work();
      by_name[std::string(speed_name(work))].push_back(&o);
      if (is_attention(work)) attention.push_back(&o);
      if (o.parts.size() > 1) continue;
      if (work.kind == Kind::Memory) memory.push_back(&o);
      if (work.kind == Kind::Matmul && work.dtype != DType::F8 && work.groups == 1 &&
          speed_name(work) == work.name)
        matmuls.push_back(&o);
    }
  }
  // Memory first: the models of the other operations use its bandwidth.
  fit(gpu, &GpuSpec::memory_efficiency, memory, {&GpuSpec::memory_gb_s});
  if (have_shapes(matmuls))
    fit_shape(gpu, &GpuSpec::gemm_efficiency, &GpuSpec::gemm_depth, &GpuSpec::gemm_fill, matmuls);
  fit(gpu, &GpuSpec::gemm_efficiency, matmuls,
      {&GpuSpec::bf16_tflops, &GpuSpec::fp16_tflops, &GpuSpec::fp32_tflops});
  if (!matmuls.empty()) std::erase(machine.assumed, "gpu.gemm_efficiency");
  if (have_shapes(attention))
    fit_shape(gpu, &GpuSpec::attention_efficiency, &GpuSpec::attention_depth, nullptr, attention);
  fit(gpu, &GpuSpec::attention_efficiency, attention, {});
  fit_speeds(gpu, by_name);
  gpu.gemm_heat = 0;
  if (gpu.vendor != GpuVendor::None && trained.size() > 2) fit_heat(machine, trained);
  if (!watts.empty()) {
    gpu.active_w = median(watts);
    gpu.wait_w = std::min(gpu.wait_w, gpu.active_w);
  }
  if (!trained.empty()) round(gpu);
  return machine;
}

std::vector<FitError> fit_errors(const Machine& machine,
                                 const std::vector<MeasuredTraining>& trained) {
  std::map<std::string, Operations> kinds;
  for (const MeasuredTraining& training : trained)
    for (const MeasuredOperation& o : training.operations)
      if (o.share >= kListed) kinds[kind_of(o)].push_back(&o);
  std::vector<FitError> errors;
  for (const auto& [kind, operations] : kinds) {
    std::vector<double> sizes;
    double share = 0;
    for (const MeasuredOperation* o : operations) {
      sizes.push_back(std::abs(modelled_s(machine.gpu, *o) / o->seconds - 1));
      share += o->share / static_cast<double>(trained.size());
    }
    errors.push_back({kind, static_cast<int>(sizes.size()), share,
                      mean_ratio(machine.gpu, operations) - 1, median(sizes),
                      quantile(sizes, 0.9)});
  }
  std::ranges::sort(errors, std::greater(), &FitError::share);
  return errors;
}

std::string calibration_table(const Machine& machine,
                              const std::vector<MeasuredTraining>& trained) {
  std::string text;
  for (const MeasuredTraining& training : trained) {
    text += fmt::format("{}\n{:<52}{:>8}{:>8}{:>13}{:>13}{:>10}\n", training.name, "operation",
                        "calls", "% step", "measured us", "modelled us", "error");
    for (const MeasuredOperation& o : training.operations) {
      if (o.share < kListed) continue;
      const double model = modelled_s(machine.gpu, o);
      const std::string name = o.work().kind != Kind::Memory
                                   ? o.name
                                   : fmt::format("{} {:.3g} B", o.name, o.work().bytes);
      text +=
          fmt::format("{:<52}{:>8.0f}{:>8.1f}{:>13.1f}{:>13.1f}{:>10}\n", name, o.calls,
                      100 * o.share, o.seconds * 1e6, model * 1e6, percent(model / o.seconds - 1));
    }
    text += "\n";
  }
  text += fmt::format("{:<28}{:>8}{:>8}{:>10}{:>10}{:>10}\n", "fit", "shapes", "% step", "bias",
                      "median", "90 %");
  for (const FitError& error : fit_errors(machine, trained))
    text +=
        fmt::format("{:<28}{:>8}{:>8.1f}{:>10}{:>9.1f}%{:>9.1f}%\n", error.kind, error.operations,
                    100 * error.share, percent(error.bias), 100 * error.median, 100 * error.most);
  text += fmt::format("\n{:<52}{:>13}{:>13}{:>10}{:>8}\n", "training", "measured ms",
                      "predicted ms", "error", "W");
  for (const MeasuredTraining& training : trained) {
    const double step_s = predicted_s(machine, training);
    text += fmt::format("{:<52}{:>13.2f}{:>13.2f}{:>10}{:>8}\n", training.name,
                        training.step_s * 1e3, step_s * 1e3, percent(step_s / training.step_s - 1),
                        training.watts > 0 ? fmt::format("{:.0f}", training.watts) : "-");
  }
  return text;
}

}  // namespace kintsugi
