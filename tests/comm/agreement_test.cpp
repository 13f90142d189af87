
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "comm/exchange.h"
#include "support/counting_communicator.h"
#include "support/echo_communicator.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const Facts kUsual = {{"optimizer.lr", "0.001"}, {"run.seed", "1"}, {"train.precision", "bf16"}};

// The error that all ranks throw; empty if none throws.
std::string disagreement(int ranks, const std::function<void(int rank, Facts& facts)>& change) {
  std::string text;
  run_ranks(ranks, [&](World& world) {
    const auto group = world.split("control", 0, world.rank());
    Facts facts = kUsual;
    change(world.rank(), facts);
    std::string mine;
    try {
      check_agreement(*group, facts);
    } catch (const SharedUserError& error) {
      mine = error.what();
    }
    for (const std::string& theirs : gather_texts(*group, mine)) EXPECT_EQ(theirs, mine);
    if (world.rank() == 0) text = mine;
  });
  return text;
}

TEST(Agreement, RanksThatAgreeExchangeTwoNumbers) {
  EXPECT_EQ(disagreement(5, [](int, Facts&) {}), "");
  Traffic traffic;
  CountingCommunicator group(std::make_unique<EchoCommunicator>("control", 7, 4096), traffic);
  check_agreement(group, kUsual);
  EXPECT_EQ(traffic[Collective::AllReduce].calls, 1);
  EXPECT_LE(traffic.bytes(), 2 * 2 * sizeof(std::int64_t));
}

TEST(Agreement, NamesTheRankAndTheKeyWithBothValues) {
  EXPECT_EQ(
      disagreement(2,
                   [](int rank, Facts& facts) {
                     if (rank == 1) facts[1].second = "2";
                   }),
      "the ranks were started differently: on rank 1 run.seed is 2 instead of 1 (as on rank 0); "
      "give all of them the same program, options, configuration and data");
}

// The majority is right, even if rank 0 is not part of it.
TEST(Agreement, TheOddRankIsNamedEvenIfItIsTheFirst) {
  EXPECT_THAT(
      disagreement(6,
                   [](int rank, Facts& facts) {
                     if (rank == 0) facts[0].second = "0.003";
                   }),
      HasSubstr("on rank 0 optimizer.lr is 0.003 instead of 0.001 (as on rank 1 and 4 more)"));
}

TEST(Agreement, SeveralRanksKeysAndVariantsAreNamed) {
  const std::string text = disagreement(12, [](int rank, Facts& facts) {
    if (rank >= 7) facts[2].second = "fp32";
    if (rank == 3) facts = {{"optimizer.lr", "1"}, {"run.seed", "9"}, {"layout", "auto"}};
  });
  EXPECT_THAT(text, AllOf(HasSubstr("on ranks 7, 8, 9, 10 and 1 more train.precision is fp32 "
                                    "instead of bf16 (as on rank 0 and 5 more)"),
                          HasSubstr("; on rank 3 layout is auto instead of absent, optimizer.lr is "
                                    "1 instead of 0.001, run.seed is 9 instead of 1"),
                          HasSubstr("train.precision is absent instead of bf16")));
}

// Long values, many keys, many ranks and many variants.
TEST(Agreement, ALargeDisagreementIsAShortText) {
  const std::string text = disagreement(32, [](int rank, Facts& facts) {
    for (int i = 0; i < 40; ++i)
      facts.emplace_back("key" + std::to_string(i),
                         std::string(3000, static_cast<char>('A' + rank)));
  });
  EXPECT_LT(text.size(), 5000u);
  EXPECT_THAT(text, AllOf(HasSubstr("and 36 more"), HasSubstr("28 more variants")));
}

TEST(Agreement, ValuesWithControlCharactersStayOneLine) {
  const std::string text = disagreement(2, [](int rank, Facts& facts) {
    if (rank == 1) facts[1].second = "a\nb\t\033[2J";
  });
  EXPECT_THAT(text, AllOf(HasSubstr("run.seed is a?b??[2J instead of 1"), Not(HasSubstr("\n"))));
}

}  // namespace
}  // namespace kintsugi
