#pragma once

#include <vector>

namespace kintsugi {

struct TimeInterval {
  double begin = 0;
  double end = 0;
  bool operator==(const TimeInterval&) const = default;
};
// Sets of moments. What the functions return, and what they take but for `merged`, is in order and
// does not touch.
using TimeIntervals = std::vector<TimeInterval>;

TimeIntervals merged(TimeIntervals any);  // their union; empty and backward ones are dropped
TimeIntervals common(const TimeIntervals& a, const TimeIntervals& b);
TimeIntervals without(const TimeIntervals& a, const TimeIntervals& b);
double length_of(const TimeIntervals& a);

}  // namespace kintsugi
