#pragma once

#include <vector>

namespace kintsugi {

// Both return NaN for an empty vector.
double mean(const std::vector<double>& values);
double median(std::vector<double> values);  // for an even count: the mean of the middle two

}  // namespace kintsugi
