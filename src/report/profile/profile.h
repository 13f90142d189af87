#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/trace.h"

namespace kintsugi {

struct TimeInterval {
  double begin = 0;
  double end = 0;
  bool operator==(const TimeInterval&) const = default;
};
// A set of time intervals. Results and arguments of all functions, except the argument of
// `merged`, are sorted and disjoint.
using TimeIntervals = std::vector<TimeInterval>;

TimeIntervals merged(TimeIntervals any);  // union; intervals with end <= begin are dropped
TimeIntervals common(const TimeIntervals& a, const TimeIntervals& b);   // intersection
TimeIntervals without(const TimeIntervals& a, const TimeIntervals& b);  // difference
double length_of(const TimeIntervals& a);

// The spans of one rank.
struct RankTrace {
  int rank = 0;
  std::string coordinates = {};  // "tp 0 cp 0 dp 1 pp 0"
  std::vector<TraceSpan> spans = {};
};

// What a profile says of its run. 0 and empty: not known.
struct ProfileFacts {
  std::int64_t first_step = 0, last_step = 0;
  std::vector<double> step_s = {};  // wall time of each step, by the clock of the trainer on rank 0
  int ranks = 1;                    // of the run; a profile may have fewer
  std::string device = {};
  std::string precision = {};     // of the run: "bf16"
  double peak_flops = 0;          // per second, in that precision
  double memory_bytes_per_s = 0;  // of the device
  std::int64_t multiprocessors = 0;
  std::string config = {};  // YAML
  std::int64_t stage = 0;   // of the configuration, from 0
};

struct Profile {
  ProfileFacts facts = {};
  std::vector<RankTrace> ranks = {};
};

// A host span "step 20".
struct StepWindow {
  std::int64_t step = 0;
  TimeInterval time = {};
};
std::vector<StepWindow> steps_of(const RankTrace& rank);  // in order of time
bool is_step(const TraceSpan& span);

// The kind of the spans that compute: Kernel, or Operation where there are no kernels, as on the
// CPU backend.
SpanKind compute_kind(const RankTrace& rank);
// Whether a span is work of the device, without communication: compute, copies, memset.
inline bool is_device_work(const TraceSpan& span, SpanKind compute) {
  return span.kind == compute || span.kind == SpanKind::Memcpy || span.kind == SpanKind::Memset;
}

}  // namespace kintsugi
