// A run on many ranks is the run of one process, whatever the ranks share.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <set>
#include <tuple>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

// A case is one choice for each of these.
enum Factor {
  kSharding,
  kModel,
  kSize,
  kAccumulation,
  kMicro,
  kDropout,
  kDocuments,
  kMasked,
  kPrecision,
  kLayers,
  kRecompute,
  kFactors
};
constexpr std::array<int, kFactors> kLevels = {7, 7, 5, 4, 3, 2, 2, 2, 2, 4, 2};
using Choice = std::array<int, kFactors>;

struct Case {
  RankLayout layout;
  Training training;
  std::string what;
};

Case case_of(const Choice& choice) {
  static constexpr std::array<int, 5> kPlain = {1, 2, 3, 7, 16};
  static constexpr std::array<std::pair<int, int>, 5> kHybrid = {
      {{4, 2}, {6, 3}, {8, 2}, {12, 4}, {16, 8}}};
  const auto size = static_cast<std::size_t>(choice[kSize]);
  Case made;
  made.layout = choice[kSharding] < 4
                    ? RankLayout{kPlain[size], choice[kSharding]}
                    : RankLayout{kHybrid[size].first, choice[kSharding] - 3, kHybrid[size].second};
  Training& training = made.training;
  const std::string& model = tiny_models()[static_cast<std::size_t>(choice[kModel])];
  training.model = tiny_model(model, choice[kLayers] + 1);
  training.precision = choice[kPrecision] == 0 ? DType::F64 : DType::F32;
  // Passes of one sequence, of two, or of two with one in the last.
  training.micro = choice[kMicro] == 0 ? 1 : 2;
  const std::int64_t passes = choice[kAccumulation] + 1,
                     each = passes * training.micro - (choice[kMicro] == 2 ? 1 : 0);
  training.sequences = each * made.layout.dp;
  training.dropout = choice[kDropout] == 0 ? 0.0 : 0.2;
  training.documents = choice[kDocuments] == 1;
  training.masked = choice[kMasked] == 1;
  training.recompute = choice[kRecompute] == 0 ? Recompute::None : Recompute::Full;
  made.what = fmt::format(
      "{}, {} of {} layers, {}, {} passes of {} for {} sequences{}{}{}{}", to_string(made.layout),
      model, training.model.layers, to_string(training.precision), passes, training.micro,
      training.sequences, training.dropout > 0 ? ", dropout" : "",
      training.documents ? ", documents" : "", training.masked ? ", masked" : "",
      training.recompute == Recompute::Full ? ", recompute" : "");
  return made;
}

void expect_equivalent(const Choice& choice) {
  const auto [layout, training, what] = case_of(choice);
  SCOPED_TRACE(what);
  constexpr std::int64_t kSteps = 20;
  // One process, in passes of its own.
  Training alone = training;
  alone.micro = training.sequences % 4 == 0 ? training.sequences / 4 : training.sequences;
  const Outcome expected = trained({}, alone, kSteps);
  const Outcome actual = trained(layout, training, kSteps);
  ASSERT_EQ(actual.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_GT(difference(actual.losses, std::vector<double>(kSteps, actual.losses[0])), 1e-3);
  expect_same(actual, expected, training.precision, what);
}

// Rows in which every two choices of different factors meet: each row takes a pair that is still
// missing and then, factor by factor, the level that brings the most others.
class PairwiseRows {
 public:
  PairwiseRows() {
    for (int f = 0; f < kFactors; ++f)
      for (int g = f + 1; g < kFactors; ++g)
        for (int a = 0; a < kLevels[static_cast<std::size_t>(f)]; ++a)
          for (int b = 0; b < kLevels[static_cast<std::size_t>(g)]; ++b)
            missing_.insert({f, a, g, b});
  }
  std::vector<Choice> make() {
    std::vector<Choice> rows;
    while (!missing_.empty()) {
      const auto [f, a, g, b] = *missing_.begin();
      Choice row;
      row.fill(-1);
      row[static_cast<std::size_t>(f)] = a;
      row[static_cast<std::size_t>(g)] = b;
      for (int factor = 0; factor < kFactors; ++factor)
        if (row[static_cast<std::size_t>(factor)] < 0) fill(row, factor);
      std::erase_if(missing_, [&](const Pair& pair) { return covers(row, pair); });
      rows.push_back(row);
    }
    return rows;
  }

 private:
  using Pair = std::tuple<int, int, int, int>;  // factor, level, factor, level
  static bool covers(const Choice& row, const Pair& pair) {
    const auto [f, a, g, b] = pair;
    return row[static_cast<std::size_t>(f)] == a && row[static_cast<std::size_t>(g)] == b;
  }
  void fill(Choice& row, int factor) {
    const auto at = static_cast<std::size_t>(factor);
    int best = 0;
    std::ptrdiff_t most = -1;
    for (int level = 0; level < kLevels[at]; ++level) {
      row[at] = level;
      const auto brings = std::count_if(missing_.begin(), missing_.end(),
                                        [&](const Pair& pair) { return covers(row, pair); });
      if (brings > most) std::tie(most, best) = std::tuple(brings, level);
    }
    row[at] = best;
  }
  std::set<Pair> missing_;
};

class PairsOfFeatures : public testing::TestWithParam<int> {};
constexpr int kSlices = 8;  // so that tests of a parallel run share the work

TEST_P(PairsOfFeatures, TrainAsOneProcessDoes) {
  const std::vector<Choice> rows = PairwiseRows().make();
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < rows.size(); i += kSlices)
    expect_equivalent(rows[i]);
}
INSTANTIATE_TEST_SUITE_P(Slices, PairsOfFeatures, testing::Range(0, kSlices));

// KINTSUGI_SEED=n repeats what a failure printed.
TEST(Equivalence, RandomDraws) {
  const char* given = std::getenv("KINTSUGI_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  fmt::print("KINTSUGI_SEED={}\n", seed);
  SCOPED_TRACE(fmt::format("KINTSUGI_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int draw = 0; draw < 10; ++draw) {
    Choice choice;
    for (std::size_t factor = 0; factor < kFactors; ++factor)
      choice[factor] = static_cast<int>(random() % static_cast<std::uint64_t>(kLevels[factor]));
    expect_equivalent(choice);
  }
}

}  // namespace
}  // namespace kintsugi
