#pragma once

#include <vector>

namespace kintsugi {

// NaN of nothing.
double mean(const std::vector<double>& values);
double median(std::vector<double> values);  // of an even number: between the middle two

}  // namespace kintsugi
