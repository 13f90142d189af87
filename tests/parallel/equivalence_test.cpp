// A run on many ranks is the run of one process, whatever the ranks share.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "support/layout_case.h"

namespace kintsugi {
namespace {

// KINTSUGI_PRECISION=fp32 has every case in fp32: whether rounding hides a bug.
LayoutCase in_wanted_precision(LayoutCase one) {
  const char* wanted = std::getenv("KINTSUGI_PRECISION");
  if (wanted != nullptr && *wanted != '\0')
    one.values[kPrecision] = parse_layout_case(fmt::format("precision={}", wanted))[kPrecision];
  return one;
}

void expect_equivalent(const LayoutCase& given) {
  const LayoutCase one = in_wanted_precision(given);
  const std::string complaint = compare_with_one_process(one).complaint;
  if (complaint.empty()) return;
  // Whoever only wants to know whether there is a failure saves the time.
  if (std::getenv("KINTSUGI_NO_SHRINK") != nullptr) FAIL() << to_string(one) << "\n  " << complaint;
  FAIL() << failure_report(one, complaint);
}

class PairsOfFeatures : public testing::TestWithParam<int> {};
constexpr int kSlices = 8;  // so that tests of a parallel run share the work

TEST_P(PairsOfFeatures, TrainAsOneProcessDoes) {
  const std::vector<LayoutCase> cases = covering_cases();
  for (auto i = static_cast<std::size_t>(GetParam()); i < cases.size(); i += kSlices) {
    expect_equivalent(cases[i]);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Slices, PairsOfFeatures, testing::Range(0, kSlices));

// What pairs, and most draws, miss: it takes five choices at once.
TEST(Equivalence, NarrowCases) {
  for (const char* text :
       // A stage that begins between the layers that are recomputed and has two of them.
       {"pp=2 schedule=zb-h1 layers=5 passes=3 split=back recompute=full recompute_every=2",
        "pp=2 layers=5 passes=3 split=back recompute=selective recompute_every=2 zero=3 dp=2"}) {
    ASSERT_TRUE(valid(parse_layout_case(text))) << text;
    expect_equivalent(parse_layout_case(text));
    if (HasFatalFailure()) return;
  }
}

// A norm over two small numbers amplifies a rounding a hundred times: what fp32 runs may differ by
// is measured for each case.
TEST(Equivalence, Fp32TolerancesFollowFromRounding) {
  for (const char* text :
       {"tp=2 layers=5 heads=8 family=qwen3 length=12 micro=2 dropout=1 precision=fp32 steps=1",
        "tp=4 layers=5 heads=8 family=qwen3 length=12 precision=fp32",
        "tp=2 pp=2 layers=12 family=qwen3 length=12 precision=fp32"}) {
    const LayoutCase one = parse_layout_case(text);
    ASSERT_TRUE(valid(one)) << text;
    EXPECT_EQ(compare_with_one_process(one).complaint, "") << text;
  }
}

// KINTSUGI_SEED=n repeats what a failure printed.
TEST(Equivalence, RandomDraws) {
  const char* given = std::getenv("KINTSUGI_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  fmt::print("KINTSUGI_SEED={}\n", seed);
  SCOPED_TRACE(fmt::format("KINTSUGI_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int draw = 0; draw < 10; ++draw) {
    expect_equivalent(draw_case(random));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kintsugi
