// A run on many ranks must be the same as the run of one process, in every layout.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "support/layout_case.h"

namespace kintsugi {
namespace {

// KINTSUGI_PRECISION=fp32 runs every case in fp32, to see whether rounding hides a bug.
LayoutCase in_requested_precision(LayoutCase one) {
  const char* precision = std::getenv("KINTSUGI_PRECISION");
  if (precision != nullptr && *precision != '\0')
    one.values[kPrecision] = parse_layout_case(fmt::format("precision={}", precision))[kPrecision];
  return one;
}

void expect_equivalent(const LayoutCase& given) {
  const LayoutCase one = in_requested_precision(given);
  const std::string complaint = compare_with_one_process(one).complaint;
  if (complaint.empty()) return;
  // KINTSUGI_NO_SHRINK saves the time of the search for a simpler case.
  if (std::getenv("KINTSUGI_NO_SHRINK") != nullptr) FAIL() << to_string(one) << "\n  " << complaint;
  FAIL() << failure_report(one, complaint);
}

class PairsOfFeatures : public testing::TestWithParam<int> {};
constexpr int kGroups = 8;  // of cases; the groups can run in parallel

TEST_P(PairsOfFeatures, TrainAsOneProcessDoes) {
  const std::vector<LayoutCase> cases = covering_cases();
  for (auto i = static_cast<std::size_t>(GetParam()); i < cases.size(); i += kGroups) {
    expect_equivalent(cases[i]);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Groups, PairsOfFeatures, testing::Range(0, kGroups));

// Cases that pairs and most random draws miss: they need five choices at once.
TEST(Equivalence, NarrowCases) {
  for (const char* text :
       // A stage that does not begin with a recomputed layer and has two of them.
       {"pp=2 schedule=zb-h1 layers=5 passes=3 split=back recompute=full recompute_every=2",
        "pp=2 layers=5 passes=3 split=back recompute=selective recompute_every=2 zero=3 dp=2",
        // The input half of a backward recomputes nothing, and retention has a norm of its own.
        "pp=2 schedule=zb-h1 layers=2 passes=2 family=retnet recompute=selective",
        // Ulysses of several sequences, with slopes of heads on two kinds of ranks, and with
        // key-value heads that ranks share.
        "tp=2 cp=2 context=ulysses family=bloom micro=2 passes=2",
        "cp=4 context=ulysses family=llama-gqa layers=2 length=12 micro=2 documents=1 "
        "recompute=full",
        "cp=2 context=ulysses family=olmo3 layers=2 length=12 documents=1"}) {
    ASSERT_TRUE(valid(parse_layout_case(text))) << text;
    expect_equivalent(parse_layout_case(text));
    if (HasFatalFailure()) return;
  }
}

// Steps with more and more micro-batches, then fewer, in pipelines planned for the most.
TEST(Equivalence, BatchesThatChange) {
  for (const char* family : {"llama-tied", "gpt2"})
    for (const bool offload : {false, true}) {
      const Training training{.model = tiny_model(family, 4),
                              .sequences = 16,
                              .ramp = {4, 4, 8, 8, 12, 16, 4, 12},
                              .dropout = 0.2,
                              .masked = true,
                              .offload = {.on = offload}};
      const Outcome alone = trained({}, training, 9);
      using enum PipelineKind;
      for (const RankLayout& layout :
           {RankLayout{.dp = 2}, RankLayout{.dp = 4, .zero = 2}, RankLayout{.dp = 2, .zero = 3},
            RankLayout{.tp = 2, .cp = 1, .pp = 2}, RankLayout{.pp = 4},
            RankLayout{.pp = 2, .schedule = GPipe},
            RankLayout{.dp = 2, .zero = 2, .pp = 2, .schedule = ZeroBubbleH1},
            RankLayout{.pp = 4, .schedule = ZeroBubbleH1},
            RankLayout{.dp = 2, .zero = 1, .pp = 2, .chunks = 2, .schedule = Interleaved},
            RankLayout{.pp = 4, .schedule = OneForwardOneBackward, .split = {1, 1, 1, 1}}})
        expect_same(trained(layout, training, 9), alone, to_string(layout));
    }
}

// A norm over two small numbers amplifies a rounding error a hundred times, so the tolerance of
// fp32 runs is measured for each case.
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

// KINTSUGI_SEED=n repeats a failure with the seed that it printed.
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
