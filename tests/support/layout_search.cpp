// Drawing, covering, shrinking and running the cases of layout_case.h.
#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>

#include "support/layout_case.h"

namespace kintsugi {
namespace {

bool complete_from(LayoutCase& one, std::size_t factor, const LevelOrder& order) {
  while (factor < kFactors && one[factor] != LayoutCase::kOpen) ++factor;
  if (factor == kFactors) return true;
  for (const int level : order(one, factor)) {
    one.values[factor] = level;
    if (may_become_valid(one) && complete_from(one, factor + 1, order)) return true;
  }
  one.values[factor] = LayoutCase::kOpen;
  return false;
}

LayoutCase all_open() {
  LayoutCase one;
  one.values.fill(LayoutCase::kOpen);
  one.values[kSteps] = LayoutCase()[kSteps];
  return one;
}

// The pairs of levels that no case has yet, by the places of the levels in their lists.
class MissingPairs {
 public:
  MissingPairs() {
    for (std::size_t f = 0; f < kFactors; ++f) {
      first_.push_back(total_);
      total_ += levels_of(f).levels.size();
    }
    missing_.assign(total_ * total_, false);
    for (std::size_t f = 0; f < kFactors; ++f)
      for (std::size_t g = f + 1; g < kFactors; ++g)
        for (const int a : levels_of(f).levels)
          for (const int b : levels_of(g).levels) missing_[place(f, a, g, b)] = true;
  }
  bool missing(std::size_t f, int a, std::size_t g, int b) const {
    return f < g ? missing_[place(f, a, g, b)] : missing_[place(g, b, f, a)];
  }
  void cover(std::size_t f, int a, std::size_t g, int b) { missing_[place(f, a, g, b)] = false; }
  void cover(const LayoutCase& one) {
    for (std::size_t f = 0; f < kFactors; ++f)
      for (std::size_t g = f + 1; g < kFactors; ++g) cover(f, one[f], g, one[g]);
  }
  // How many a level would bring beside what is chosen.
  int brought(const LayoutCase& one, std::size_t factor, int level) const {
    int count = 0;
    for (std::size_t g = 0; g < kFactors; ++g)
      count += g != factor && one[g] != LayoutCase::kOpen && missing(factor, level, g, one[g]);
    return count;
  }

 private:
  std::size_t number(std::size_t f, int level) const {
    const auto& levels = levels_of(f).levels;
    return first_[f] + static_cast<std::size_t>(std::find(levels.begin(), levels.end(), level) -
                                                levels.begin());
  }
  std::size_t place(std::size_t f, int a, std::size_t g, int b) const {
    return number(f, a) * total_ + number(g, b);
  }
  std::vector<std::size_t> first_;
  std::size_t total_ = 0;
  std::vector<bool> missing_;
};

}  // namespace

bool complete(LayoutCase& one, const LevelOrder& order) {
  return may_become_valid(one) && complete_from(one, 0, order);
}

LayoutCase draw_case(std::mt19937_64& random) {
  LayoutCase one = all_open();
  one.values[kPrecision] = random() % 5 == 0 ? 1 : 0;
  if (random() % 8 == 0) one.values[kSteps] = 20;
  const auto any_order = [&](const LayoutCase&, std::size_t factor) {
    std::vector<int> levels = levels_of(factor).levels;
    std::shuffle(levels.begin(), levels.end(), random);
    return levels;
  };
  // Who is drawn first has the most to choose from.
  std::array<std::size_t, 4> extents = {kTp, kCp, kDp, kPp};
  std::shuffle(extents.begin(), extents.end(), random);
  for (const std::size_t extent : extents)
    for (const int level : any_order(one, extent)) {
      one.values[extent] = level;
      LayoutCase rest = one;
      if (complete(rest, any_order)) break;
    }
  complete(one, any_order);
  return one;
}

std::vector<LayoutCase> pairwise_cases(int* impossible) {
  MissingPairs pairs;
  std::vector<LayoutCase> cases;
  // The levels that bring the most pairs first.
  const LevelOrder greedy = [&](const LayoutCase& one, std::size_t factor) {
    std::vector<std::pair<int, int>> gains;
    for (const int level : levels_of(factor).levels)
      gains.emplace_back(-pairs.brought(one, factor, level), level);
    std::stable_sort(gains.begin(), gains.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<int> levels;
    for (const auto& [gain, level] : gains) levels.push_back(level);
    return levels;
  };
  int never = 0;
  for (std::size_t f = 0; f < kFactors; ++f)
    for (std::size_t g = f + 1; g < kFactors; ++g)
      for (const int a : levels_of(f).levels)
        for (const int b : levels_of(g).levels) {
          if (!pairs.missing(f, a, g, b)) continue;
          LayoutCase one = all_open();
          one.values[f] = a;
          one.values[g] = b;
          if (complete(one, greedy)) {
            pairs.cover(one);
            cases.push_back(one);
          } else {
            ++never;
          }
        }
  if (impossible != nullptr) *impossible = never;
  // The short ones show a bug as well; the long ones also that nothing drifts.
  for (std::size_t i = 0; i < cases.size(); i += 2) cases[i].values[kSteps] = 20;
  return cases;
}

// ---- shrinking

namespace {

std::vector<int> simpler_levels(const LayoutCase& one, std::size_t factor) {
  std::vector<int> levels = levels_of(factor).levels;
  if (factor == kSteps) levels = {1, 2, 4};
  const auto here = std::find(levels.begin(), levels.end(), one[factor]);
  levels.erase(here, levels.end());
  return levels;
}

using Fails = std::function<bool(const LayoutCase&)>;

// The first simpler case that fails, if any.
bool make_simpler(LayoutCase& one, const Fails& fails) {
  const auto take = [&](const LayoutCase& other) {
    if (!valid(other) || !fails(other)) return false;
    one = other;
    return true;
  };
  for (std::size_t f = 0; f < kFactors; ++f)
    for (const int level : simpler_levels(one, f)) {
      LayoutCase other = one;
      other.values[f] = level;
      if (valid(other)) {
        if (take(other)) return true;
        continue;
      }
      for (std::size_t g = 0; g < kFactors; ++g)
        for (const int beside : g == f ? std::vector<int>{} : simpler_levels(one, g)) {
          LayoutCase both = other;
          both.values[g] = beside;
          if (take(both)) return true;
        }
    }
  return false;
}

}  // namespace

LayoutCase shrink(LayoutCase failing, const Fails& fails) {
  while (make_simpler(failing, fails)) {
  }
  return failing;
}

// ---- running

Comparison compare_with_one_process(const LayoutCase& one) {
  const Training training = one.training();
  Training alone = training;
  alone.micro = training.sequences % 4 == 0 ? training.sequences / 4 : training.sequences;
  alone.recompute = Recompute::None;
  Comparison result;
  testing::TestPartResultArray disagreements;
  try {
    // Ranks that do not agree fail a test from their threads; here that is one of the findings.
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &disagreements);
    const Outcome expected = trained({}, alone, one[kSteps]);
    const Outcome actual = trained(one.layout(), training, one[kSteps]);
    result.complaint = complaint(actual, expected, training.precision);
    result.losses = difference(actual.losses, expected.losses);
    result.norms = difference(actual.norms, expected.norms);
    result.weights = difference(actual.weights, expected.weights);
    // A run that stands still would be the same as any other.
    const std::vector<double> first(actual.losses.size(), actual.losses.at(0));
    if (one[kSteps] > 1 && !(difference(actual.losses, first) > 1e-3))
      result.complaint += "losses do not change from step to step; ";
  } catch (const std::exception& error) {
    result.complaint += fmt::format("{}; ", error.what());
  }
  if (disagreements.size() > 0)
    result.complaint += fmt::format("{} times ranks do not agree, first: {}", disagreements.size(),
                                    disagreements.GetTestPartResult(0).message());
  return result;
}

std::string failure_report(const LayoutCase& one, const std::string& complaint) {
  std::string last = complaint;
  const LayoutCase smallest = shrink(one, [&](const LayoutCase& other) {
    const std::string wrong = compare_with_one_process(other).complaint;
    if (!wrong.empty()) last = wrong;
    return !wrong.empty();
  });
  return fmt::format("{}\n  {}\nThe simplest case like it:\n  {}\n  {}\nRepeat it with:\n  {}",
                     to_string(one), complaint, to_string(smallest), last, command_for(smallest));
}

}  // namespace kintsugi
