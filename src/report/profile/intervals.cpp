#include "report/profile/intervals.h"

#include <algorithm>
#include <limits>

namespace kintsugi {

TimeIntervals merged(TimeIntervals any) {
  std::erase_if(any, [](const TimeInterval& one) { return !(one.begin < one.end); });
  std::sort(any.begin(), any.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  TimeIntervals result;
  for (const TimeInterval& one : any) {
    if (result.empty() || result.back().end < one.begin)
      result.push_back(one);
    else
      result.back().end = std::max(result.back().end, one.end);
  }
  return result;
}

TimeIntervals common(const TimeIntervals& a, const TimeIntervals& b) {
  TimeIntervals result;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    const TimeInterval both{std::max(x->begin, y->begin), std::min(x->end, y->end)};
    if (both.begin < both.end) result.push_back(both);
    x->end < y->end ? ++x : ++y;
  }
  return result;
}

TimeIntervals without(const TimeIntervals& a, const TimeIntervals& b) {
  TimeIntervals rest;  // complement of b
  double end = -std::numeric_limits<double>::infinity();
  for (const TimeInterval& one : b) {
    rest.push_back({end, one.begin});
    end = one.end;
  }
  rest.push_back({end, std::numeric_limits<double>::infinity()});
  return common(a, rest);
}

double length_of(const TimeIntervals& a) {
  double sum = 0;
  for (const TimeInterval& one : a) sum += one.end - one.begin;
  return sum;
}

}  // namespace kintsugi
