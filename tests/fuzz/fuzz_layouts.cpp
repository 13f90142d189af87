// Compares random layouts with one process and stops at the first difference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <random>

#include "core/error.h"
#include "support/layout_case.h"

namespace kintsugi {
namespace {

// The largest differences so far.
struct Largest {
  double losses = 0, norms = 0, weights = 0;
  double losses_fp32 = 0;  // fp32 is also measured in units of the rounding bound
  double of_allowed_losses = 0, of_allowed_norms = 0;
  int cases_fp32 = 0;

  void add(const LayoutCase& one, const Comparison& comparison) {
    if (one[kPrecision] == 1) {
      ++cases_fp32;
      losses_fp32 = std::max(losses_fp32, comparison.losses);
      of_allowed_losses = std::max(of_allowed_losses, comparison.of_allowed_losses);
      of_allowed_norms = std::max(of_allowed_norms, comparison.of_allowed_norms);
      return;
    }
    losses = std::max(losses, comparison.losses);
    norms = std::max(norms, comparison.norms);
    weights = std::max(weights, comparison.weights);
  }
};

std::string to_string(const Largest& largest) {
  return fmt::format(
      "largest differences in fp64: losses {:.1e}, norms {:.1e}, weights {:.1e}; in fp32: losses "
      "{:.1e}, which is {:.2f} of the rounding bound, norms {:.2f} of it",
      largest.losses, largest.norms, largest.weights, largest.losses_fp32,
      largest.of_allowed_losses, largest.of_allowed_norms);
}

int run_case(const LayoutCase& one) {
  if (!valid(one)) user_error("'{}' is not a valid case", to_string(one));
  const Comparison comparison = compare_with_one_process(one);
  if (!comparison.complaint.empty()) {
    fmt::print("FAILED: {}\n", failure_report(one, comparison.complaint));
    return 1;
  }
  fmt::print(
      "{}: the same as one process; differences: losses {:.1e}, norms {:.1e}, weights {:.1e}\n",
      to_string(one), comparison.losses, comparison.norms, comparison.weights);
  return 0;
}

// `precision`: for all layouts, unless it is kOpen.
int run_random(int count, std::uint64_t seed, int precision) {
  fmt::print("{} random layouts, seed {}\n", count, seed);
  std::mt19937_64 random(seed);
  Largest largest;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 1; i <= count; ++i) {
    LayoutCase one = draw_case(random);
    if (precision != LayoutCase::kOpen) one.values[kPrecision] = precision;
    const Comparison comparison = compare_with_one_process(one);
    if (!comparison.complaint.empty()) {
      fmt::print("FAILED, case {} of seed {}: {}\n", i, seed,
                 failure_report(one, comparison.complaint));
      return 1;
    }
    largest.add(one, comparison);
    if (i % 20 != 0 && i != count) continue;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    fmt::print("{} of {} in {:.0f} s, last: {}\n", i, count, spent.count(), to_string(one));
    std::fflush(stdout);
  }
  fmt::print("all {} are the same as one process ({} of them in fp32)\n{}\n", count,
             largest.cases_fp32, to_string(largest));
  return 0;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // ranks report differences with its assertions
  CLI::App app("Trains in random layouts and compares with one process.");
  int count = 200;
  std::uint64_t seed = std::random_device{}();
  std::string text, precision;
  app.add_option("count", count, "number of layouts");
  app.add_option("--seed", seed, "random seed");
  app.add_option("--case", text, "run only this layout, for example 'tp=2 pp=2 layers=2'");
  app.add_option("--precision", precision, "use only fp32 or only fp64")
      ->check(CLI::IsMember({"fp32", "fp64"}));
  CLI11_PARSE(app, argc, argv);
  try {
    if (!text.empty()) return kintsugi::run_case(kintsugi::parse_layout_case(text));
    const int only_precision =
        precision.empty() ? kintsugi::LayoutCase::kOpen : precision == "fp32";
    return kintsugi::run_random(count, seed, only_precision);
  } catch (const kintsugi::UserError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
