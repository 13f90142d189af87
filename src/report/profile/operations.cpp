#include "report/profile/operations.h"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <type_traits>
#include <unordered_map>

namespace kintsugi {
namespace {

// Whether a span begins in one of the steps, which are sorted.
bool in_steps(const TraceSpan& span, const std::vector<StepWindow>& steps) {
  const auto after =
      std::upper_bound(steps.begin(), steps.end(), span.begin_s,
                       [](double time, const StepWindow& step) { return time < step.time.begin; });
  return after != steps.begin() && span.begin_s < std::prev(after)->time.end;
}

// The time of the device by the number of the operation that caused it.
using DeviceTimes = std::unordered_map<std::int64_t, double>;

DeviceTimes device_times(const RankTrace& rank) {
  std::unordered_map<std::int64_t, TimeIntervals> intervals;
  for (const TraceSpan& span : rank.spans)
    if (span.operation != 0 && is_device_work(span, SpanKind::Kernel))
      intervals[span.operation].push_back({span.begin_s, span.end_s});
  DeviceTimes times;
  for (auto& [operation, one] : intervals) times[operation] = length_of(merged(std::move(one)));
  return times;
}

// Sums over the ranks; the results are divided by the number of steps at the end.
class Totals {
 public:
  void add(const RankTrace& rank) {
    const std::vector<StepWindow> steps = steps_of(rank);
    steps_ += static_cast<double>(steps.size());
    const DeviceTimes times = device_times(rank);
    for (const TraceSpan& span : rank.spans) {
      const bool alone = span.operation == 0 && is_device_work(span, SpanKind::Kernel);
      if ((span.kind != SpanKind::Operation && !alone) || !in_steps(span, steps)) continue;
      const auto measured = alone ? times.end() : times.find(span.operation);
      add(span, measured != times.end() ? measured->second : span.end_s - span.begin_s);
    }
  }

  OperationTotals take() {
    OperationTotals result;
    for (auto& [name, one] : operations_) result.operations.push_back(per_step(std::move(one)));
    for (auto& [name, one] : layers_) result.layers.push_back(per_step(std::move(one)));
    for (auto& [name, one] : phases_) result.phases.push_back(per_step(std::move(one)));
    const auto longer = [](const auto& a, const auto& b) {
      return std::tuple(-a.seconds, a.name) < std::tuple(-b.seconds, b.name);
    };
    std::sort(result.operations.begin(), result.operations.end(), longer);
    std::sort(result.phases.begin(), result.phases.end(), longer);
    std::sort(result.layers.begin(), result.layers.end(), [](const auto& a, const auto& b) {
      return position_of(a.name) < position_of(b.name);
    });
    return result;
  }

 private:
  void add(const TraceSpan& span, double seconds) {
    const std::string phase = phase_kind(span.phase);
    OperationTotal& operation = operations_[span.name];
    if (operation.calls == 0) {
      operation.name = span.name;
      operation.work = span.work;
      operation.dtype = span.dtype;
    }
    operation.flops += span.flops;
    operation.bytes += static_cast<double>(span.bytes);
    PartTotal& layer = layers_[span.layer];
    layer.name = span.layer;
    PartTotal& sum = phases_[phase];
    sum.name = phase;
    for (auto* const one : {&operation.calls, &layer.calls, &sum.calls}) *one += 1;
    for (auto* const one : {&operation.seconds, &layer.seconds, &sum.seconds}) *one += seconds;
    if (phase.empty()) return;
    operation.phases[phase] += seconds;
    layer.phases[phase] += seconds;
  }
  template <class Total>
  Total per_step(Total one) const {
    one.calls /= steps_;
    one.seconds /= steps_;
    for (auto& [name, seconds] : one.phases) seconds /= steps_;
    if constexpr (std::is_same_v<Total, OperationTotal>) {
      one.flops /= steps_;
      one.bytes /= steps_;
    }
    return one;
  }
  // The order of the model: embedding, layers by number, head, others.
  static std::tuple<int, std::int64_t, std::string> position_of(const std::string& layer) {
    constexpr std::string_view kLayer = "layer ";
    std::int64_t number = 0;
    if (layer.starts_with(kLayer))
      std::from_chars(layer.data() + kLayer.size(), layer.data() + layer.size(), number);
    const int part = layer == "embedding"        ? 0
                     : layer.starts_with(kLayer) ? 1
                     : layer == "head"           ? 2
                     : !layer.empty()            ? 3
                                                 : 4;
    return {part, number, layer};
  }

  double steps_ = 0;
  std::map<std::string, OperationTotal> operations_;
  std::map<std::string, PartTotal> layers_;
  std::map<std::string, PartTotal> phases_;
};

}  // namespace

std::string phase_kind(const std::string& phase) {
  const std::size_t digit = phase.find_first_of("0123456789");
  std::string kind = phase.substr(0, digit);
  while (kind.ends_with(' ')) kind.pop_back();
  return kind;
}

std::string OperationTotal::main_phase() const {
  std::string name;
  double longest = -1;
  for (const auto& [phase, time] : phases)
    if (time > longest) {
      name = phase;
      longest = time;
    }
  return name;
}

double attainable(const OperationTotal& operation, const ProfileFacts& facts) {
  if (operation.work == WorkKind::Memory) return facts.memory_bytes_per_s;
  // The peak is that of one precision.
  if (operation.work == WorkKind::Unknown || operation.dtype != facts.precision ||
      facts.peak_flops <= 0 || facts.memory_bytes_per_s <= 0)
    return 0;
  return std::min(facts.peak_flops, facts.memory_bytes_per_s * operation.intensity());
}

double efficiency(const OperationTotal& operation, const ProfileFacts& facts) {
  const double best = attainable(operation, facts);
  if (best <= 0) return 0;
  return (operation.work == WorkKind::Memory ? operation.bytes_per_s() : operation.flops_per_s()) /
         best;
}

double OperationTotals::seconds() const {
  double sum = 0;
  for (const OperationTotal& one : operations) sum += one.seconds;
  return sum;
}

OperationTotals operation_totals(const Profile& profile) {
  Totals totals;
  for (const RankTrace& rank : profile.ranks) totals.add(rank);
  return totals.take();
}

}  // namespace kintsugi
