#include "comm/roll_call.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/thread_world.h"

namespace kintsugi {
namespace {

TEST(RollCall, EveryRankHearsEveryOther) {
  run_ranks(4, [](World& world) {
    const RollCall roll_call(world, [&] { return fmt::format("I am {}", world.rank()); });
    for (int rank = 0; rank < world.size(); ++rank)
      EXPECT_EQ(roll_call.ask(rank, 5000), fmt::format("I am {}", rank));
    world.split("end", 0, world.rank())->barrier();  // nobody leaves before all have asked
  });
}

TEST(RollCall, NobodyAnswersForARankThatLeft) {
  run_ranks(2, [](World& world) {
    const auto group = world.split("end", 0, world.rank());
    auto roll_call = std::make_unique<RollCall>(world, [] { return "here"; });
    if (world.rank() == 1) roll_call.reset();
    group->barrier();
    if (world.rank() == 0) {
      EXPECT_EQ(roll_call->ask(1, 200), std::nullopt);
      EXPECT_EQ(roll_call->ask(0, 5000), "here");
    }
  });
}

}  // namespace
}  // namespace kintsugi
