#pragma once

#include <vector>

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

}  // namespace kintsugi
