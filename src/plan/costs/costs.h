#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "plan/costs/collectives.h"
#include "plan/machines/machine.h"
#include "plan/machines/software.h"

namespace kintsugi {

// Seconds of single operations on one device.
double matmul_s(const GpuSpec& gpu, const Software& software, const TracedOperation& operation);
double attention_s(const GpuSpec& gpu, const Software& software, const TracedOperation& operation);
double memory_s(const GpuSpec& gpu, const Software& software, double bytes);
// The name of an operation in GpuSpec::speeds: its own, but "matmul_unaligned" with a vocabulary
// that is not a multiple of 8. No other extent of models is larger than 32,768 and unaligned.
std::string_view speed_name(const TracedOperation& operation);
// Of any operation but collectives and waits, at its speed.
double operation_s(const GpuSpec& gpu, const Software& software, const TracedOperation& operation);

// The fraction of the peak that a matmul of this shape reaches.
double matmul_efficiency(const GpuSpec& gpu, double m, double n, double k);

// The time of a trace: compute on one stream, collectives on another, synchronized by the waits.
struct TraceCost {
  double total_s = 0;
  double matmul_s = 0, attention_s = 0, memory_s = 0;
  double communication_s = 0;
  double exposed_s = 0;  // communication that does not overlap with compute

  TraceCost& operator+=(const TraceCost& other);
};
TraceCost operator*(double times, const TraceCost& cost);
// Applies GpuSpec::gemm_heat to a micro-batch.
void add_heat(const GpuSpec& gpu, TraceCost& forward, TraceCost& backward);

using LinksOf = std::function<const GroupLinks&(const std::string& group)>;
// Called for every operation, with the time that the device and the host take for it.
using OnOperation = std::function<void(const TracedOperation& operation, double seconds)>;
TraceCost cost_of(const Machine& machine, const Software& software, const OperationTrace& trace,
                  const LinksOf& links, const OnOperation& on_operation = {});

}  // namespace kintsugi
