#include "support/rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kintsugi {
namespace {

double apart(double actual, double expected, double at_least) {
  return std::abs(actual - expected) / std::max(at_least, std::abs(expected));
}
double losses_apart(double actual, double expected) { return apart(actual, expected, 1.0); }
double norms_apart(double actual, double expected) { return apart(actual, expected, 1e-30); }

// A step's difference also counts for later steps, so that a step that agrees by chance is not too
// tight.
template <class F>
void raise(std::vector<double>& largest, const std::vector<double>& actual,
           const std::vector<double>& expected, const F& apart) {
  double so_far = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    so_far = std::max(so_far, apart(actual.at(i), expected[i]));
    largest[i] = std::max(largest[i], so_far);
  }
}

}  // namespace

Rounding::Rounding(Outcome fp64)
    : fp64_(std::move(fp64)), losses_(fp64_.losses.size(), 0.0), norms_(fp64_.norms.size(), 0.0) {}

void Rounding::add(const Outcome& fp32) {
  raise(losses_, fp32.losses, fp64_.losses, losses_apart);
  raise(norms_, fp32.norms, fp64_.norms, norms_apart);
}

double Rounding::tolerance(double rounding) {
  // Two runs may differ in opposite directions, and the measured ones need not be the worst. The
  // tolerance is at least a few roundings of the result itself.
  return 3 * rounding + 4 * 0x1.0p-23;
}

Rounding::Distance Rounding::distance(const Outcome& actual, const Outcome& expected) const {
  Distance result;
  const auto add = [](double& largest, double ratio) {
    if (!(ratio <= largest)) largest = std::isnan(ratio) ? INFINITY : ratio;
  };
  for (std::size_t i = 0; i < losses_.size(); ++i)
    add(result.losses,
        losses_apart(actual.losses.at(i), expected.losses.at(i)) / loss_tolerance(i));
  for (std::size_t i = 0; i < norms_.size(); ++i)
    add(result.norms, norms_apart(actual.norms.at(i), expected.norms.at(i)) / norm_tolerance(i));
  return result;
}

std::string Rounding::complaint(const Outcome& actual, const Outcome& expected) const {
  const auto [losses, norms] = distance(actual, expected);
  const auto say = [](const char* what, double ratio) {
    return ratio <= 1
               ? ""
               : fmt::format("{} differ by {:.2g} times what rounding explains; ", what, ratio);
  };
  return say("losses", losses) + say("norms", norms);
}

}  // namespace kintsugi
