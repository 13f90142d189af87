// A fixed set of cases that covers all pairs of levels.
#include <algorithm>
#include <set>

#include "support/layout_case.h"

namespace kintsugi {
namespace {

// The pairs of levels that no case has yet.
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
          for (const int b : levels_of(g).levels) missing_[index(f, a, g, b)] = true;
  }
  bool missing(std::size_t f, int a, std::size_t g, int b) const {
    return f < g ? missing_[index(f, a, g, b)] : missing_[index(g, b, f, a)];
  }
  void cover(std::size_t f, int a, std::size_t g, int b) { missing_[index(f, a, g, b)] = false; }
  void cover(const LayoutCase& one) {
    for (std::size_t f = 0; f < kFactors; ++f)
      for (std::size_t g = f + 1; g < kFactors; ++g) cover(f, one[f], g, one[g]);
  }
  // The number of missing pairs that a level would cover with the levels already chosen.
  int covered_by(const LayoutCase& one, std::size_t factor, int level) const {
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
  std::size_t index(std::size_t f, int a, std::size_t g, int b) const {
    return number(f, a) * total_ + number(g, b);
  }
  std::vector<std::size_t> first_;
  std::size_t total_ = 0;
  std::vector<bool> missing_;
};

using Levels = std::vector<std::pair<std::size_t, int>>;  // of some factors

// Factors of which three can interact: how a pipeline splits the layers, what it saves of them, and
// who holds their weights.
constexpr std::array<std::size_t, 6> kEntangled = {
    kSchedule, kZero, kRecompute, kRecomputeEvery, kSequenceParallel, kDropout};

class Cover {
 public:
  std::vector<LayoutCase> make() {
    for (std::size_t f = 0; f < kFactors; ++f)
      for (std::size_t g = f + 1; g < kFactors; ++g)
        for (const int a : levels_of(f).levels)
          for (const int b : levels_of(g).levels)
            if (pairs_.missing(f, a, g, b) && !add({{f, a}, {g, b}})) ++impossible_;
    for (std::size_t i = 0; i < kEntangled.size(); ++i)
      for (std::size_t j = i + 1; j < kEntangled.size(); ++j)
        for (std::size_t k = j + 1; k < kEntangled.size(); ++k)
          cover_triples(kEntangled[i], kEntangled[j], kEntangled[k]);
    // Short runs find most bugs; long ones also show drift.
    for (std::size_t i = 0; i < cases_.size(); i += 3) cases_[i].values[kSteps] = 20;
    return std::move(cases_);
  }
  int impossible_pairs() const { return impossible_; }

 private:
  void cover_triples(std::size_t f, std::size_t g, std::size_t h) {
    std::set<std::array<int, 3>> seen;
    for (const LayoutCase& one : cases_) seen.insert({one[f], one[g], one[h]});
    for (const int a : levels_of(f).levels)
      for (const int b : levels_of(g).levels)
        for (const int c : levels_of(h).levels)
          if (!seen.contains({a, b, c})) add({{f, a}, {g, b}, {h, c}});
  }
  bool add(const Levels& levels) {
    LayoutCase one = open_case();
    for (const auto& [factor, level] : levels) one.values[factor] = level;
    if (!complete(one, [&](const LayoutCase& unfinished, std::size_t factor) {
          return order(unfinished, factor);
        }))
      return false;
    pairs_.cover(one);
    cases_.push_back(one);
    return true;
  }
  // The levels that cover the most missing pairs first; ties in random order.
  std::vector<int> order(const LayoutCase& unfinished, std::size_t factor) {
    std::vector<std::tuple<int, std::uint64_t, int>> gains;
    for (const int level : levels_of(factor).levels)
      gains.emplace_back(-pairs_.covered_by(unfinished, factor, level), random_(), level);
    std::sort(gains.begin(), gains.end());
    std::vector<int> levels;
    for (const auto& [gain, any, level] : gains) levels.push_back(level);
    return levels;
  }

  MissingPairs pairs_;
  std::vector<LayoutCase> cases_;
  int impossible_ = 0;
  std::mt19937_64 random_{5};  // the same cases in every run
};

}  // namespace

std::vector<LayoutCase> covering_cases(int* impossible) {
  Cover cover;
  std::vector<LayoutCase> cases = cover.make();
  if (impossible != nullptr) *impossible = cover.impossible_pairs();
  return cases;
}

}  // namespace kintsugi
