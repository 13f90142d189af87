#pragma once

#include <vector>

namespace kintsugi {

// All return NaN for an empty vector.
double mean(const std::vector<double>& values);
double median(std::vector<double> values);  // for an even count: the mean of the middle two
// The value below which `fraction` (0 to 1) of the values are, interpolated between neighbours.
double quantile(std::vector<double> values, double fraction);

}  // namespace kintsugi
