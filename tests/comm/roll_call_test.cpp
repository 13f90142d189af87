#include "comm/roll_call.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>

#include "support/thread_world.h"

namespace kintsugi {
namespace {

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

TEST(RollCall, EveryRankGetsTheAnswersOfAllOthers) {
  run_ranks(4, [](World& world) {
    const RollCall roll_call(world, [&] { return fmt::format("I am {}", world.rank()); });
    const auto answers = roll_call.ask(all_ranks(world), 20000);
    ASSERT_EQ(answers.size(), 4u);
    for (int rank = 0; rank < world.size(); ++rank)
      EXPECT_EQ(answers[static_cast<std::size_t>(rank)], fmt::format("I am {}", rank));
    EXPECT_TRUE(roll_call.ask({}, 20000).empty());
    world.split("end", 0, world.rank())->barrier();  // no rank leaves before all have asked
  });
}

TEST(RollCall, NoAnswerFromARankThatLeft) {
  run_ranks(2, [](World& world) {
    const auto group = world.split("end", 0, world.rank());
    auto roll_call = std::make_unique<RollCall>(world, [] { return "here"; });
    if (world.rank() == 1) roll_call.reset();
    group->barrier();
    if (world.rank() == 0) {
      using Answers = std::vector<std::optional<std::string>>;
      EXPECT_EQ(roll_call->ask({1, 0}, 20000), (Answers{std::nullopt, "here"}));
    }
  });
}

// No rank answers before all have been asked: asking one after the other would time out.
TEST(RollCall, AllAreAskedInParallel) {
  constexpr int kRanks = 24;
  std::mutex mutex;
  std::condition_variable changed;
  int asked = 0;
  run_ranks(kRanks, [&](World& world) {
    const RollCall roll_call(world, [&] {
      std::unique_lock lock(mutex);
      ++asked;
      changed.notify_all();
      changed.wait_for(lock, std::chrono::seconds(60), [&] { return asked >= kRanks; });
      return asked >= kRanks ? std::string("all of us") : std::string("alone");
    });
    if (world.rank() == 0) {
      for (const auto& answer : roll_call.ask(all_ranks(world), 60000))
        EXPECT_EQ(answer, "all of us");
    }
    world.split("end", 0, world.rank())->barrier();
  });
}

// Ranks that accept the connection but do not answer cost one timeout in total and do not delay the
// other answers.
TEST(RollCall, OneDeadlineForAll) {
  constexpr int kRanks = 40;
  run_ranks(kRanks, [&](World& world) {
    const auto group = world.split("end", 0, world.rank());
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    const bool silent = world.rank() > 0 && world.rank() < kRanks - 1;
    const RollCall roll_call(world, [&] {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !silent || over; });
      return std::string("here");
    });
    if (world.rank() == 0) {
      const auto answers = roll_call.ask(all_ranks(world), 2000);
      EXPECT_EQ(answers.front(), "here");
      EXPECT_EQ(answers.back(), "here");
      for (std::size_t rank = 1; rank + 1 < answers.size(); ++rank)
        EXPECT_EQ(answers[rank], std::nullopt) << rank;
    }
    group->barrier();
    const std::lock_guard lock(mutex);
    over = true;
    changed.notify_all();
  });
}

}  // namespace
}  // namespace kintsugi
