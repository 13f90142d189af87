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

// The share of the peak that a product of this shape reaches.
double matmul_efficiency(const GpuSpec& gpu, double m, double n, double k);

// Of a trace: computation on one stream, collectives on another, as the waits have it.
struct TraceCost {
  double total_s = 0;
  double matmul_s = 0, attention_s = 0, memory_s = 0;
  double communication_s = 0;  // of which this much was waited for:
  double exposed_s = 0;

  TraceCost& operator+=(const TraceCost& other);
};
TraceCost operator*(double times, const TraceCost& cost);

using LinksOf = std::function<const GroupLinks&(const std::string& group)>;
TraceCost cost_of(const Machine& machine, const Software& software, const OperationTrace& trace,
                  const LinksOf& links);

}  // namespace kintsugi
