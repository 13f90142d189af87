#pragma once

#include <functional>
#include <string>

#include "plan/costs/collectives.h"
#include "plan/machines/machine.h"
#include "plan/machines/software.h"

namespace kintsugi {

// Seconds of single operations on one device.
double matmul_s(const GpuSpec& gpu, const Software& software, const TracedOperation& operation);
double attention_s(const GpuSpec& gpu, const Software& software, const TracedOperation& operation);
double memory_s(const GpuSpec& gpu, const Software& software, double bytes);

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

using LinksOf = std::function<const GroupLinks&(const std::string& group)>;
// Called for every operation, with the time that the device and the host take for it.
using OnOperation = std::function<void(const TracedOperation& operation, double seconds)>;
TraceCost cost_of(const Machine& machine, const Software& software, const OperationTrace& trace,
                  const LinksOf& links, const OnOperation& on_operation = {});

}  // namespace kintsugi
