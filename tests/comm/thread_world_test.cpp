#include "support/thread_world.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/collective_cases.h"

namespace kintsugi {
namespace {

Tensor tensor(std::vector<float>& data) {
  return {data.data(), DType::F32, {static_cast<std::int64_t>(data.size())}};
}

std::string failure_of(int ranks, const std::function<void(World&)>& function) {
  try {
    run_ranks(ranks, function);
  } catch (const Failure& failure) {
    return failure.what();
  }
  ADD_FAILURE() << "no Failure";
  return "";
}

TEST(ThreadWorld, EveryCollective) {
  for (const int ranks : {1, 2, 3, 16})
    run_ranks(ranks, [](World& world) { check_collectives(*world.split("dp", 0, world.rank())); });
}

TEST(ThreadWorld, SplitOrdersByKey) {
  run_ranks(6, [](World& world) {
    const auto group = world.split("odd", world.rank() % 2, -world.rank());
    EXPECT_EQ(group->size(), 3);
    EXPECT_EQ(group->rank(), 2 - world.rank() / 2);
    check_collectives(*group);
  });
}

TEST(ThreadWorld, ResultsAppearInWaitOnly) {
  run_ranks(2, [](World& world) {
    const auto group = world.split("dp", 0, world.rank());
    std::vector<float> x{1, 2};
    const auto work = group->all_reduce(tensor(x));
    EXPECT_TRUE(std::isnan(x[0]));
    group->wait(work);
    EXPECT_EQ(x, (std::vector<float>{2, 4}));
  });
}

// (1 + 2^-24) + 2^-24 is 1 in this order and above 1 in the other.
TEST(ThreadWorld, SumsAreInRankOrder) {
  run_ranks(3, [](World& world) {
    const auto group = world.split("dp", 0, world.rank());
    std::vector<float> x{world.rank() == 0 ? 1.0f : std::ldexp(1.0f, -24)};
    std::vector<float> y{world.rank() == 2 ? 1.0f : std::ldexp(1.0f, -24)};
    group->wait(group->all_reduce(tensor(x)));
    group->wait(group->all_reduce(tensor(y)));
    EXPECT_EQ(x[0], 1.0f);
    EXPECT_EQ(y[0], 1.0f + std::ldexp(1.0f, -23));
  });
}

TEST(ThreadWorld, TheFirstExceptionIsRethrown) {
  EXPECT_EQ(failure_of(4,
                       [](World& world) {
                         const auto group = world.split("dp", 0, world.rank());
                         if (world.rank() == 2) failure("rank 2 is tired");
                         group->barrier();
                       }),
            "rank 2 is tired");
}

TEST(ThreadWorld, ADeadlockIsAFailure) {
  const std::string message = failure_of(3, [](World& world) {
    const auto group = world.split("dp", 0, world.rank());
    if (world.rank() != 1) group->barrier();
  });
  EXPECT_NE(message.find("all ranks wait"), std::string::npos) << message;
}

TEST(ThreadWorld, MisuseIsAFailure) {
  const auto touched = failure_of(2, [](World& world) {
    const auto group = world.split("dp", 0, world.rank());
    std::vector<float> x(3), full(6);
    const auto work = group->all_gather(tensor(full), tensor(x));
    x[1] = 1;
    group->wait(work);
  });
  EXPECT_NE(touched.find("written to before wait"), std::string::npos) << touched;
  const auto dropped = failure_of(2, [](World& world) {
    std::vector<float> x(3);
    world.split("dp", 0, world.rank())->all_reduce(tensor(x));
  });
  EXPECT_NE(dropped.find("never waited for"), std::string::npos) << dropped;
  const auto different = failure_of(2, [](World& world) {
    const auto group = world.split("dp", 0, world.rank());
    std::vector<float> x(3 + world.rank());
    group->wait(group->all_reduce(tensor(x)));
  });
  EXPECT_NE(different.find("calls all_reduce of"), std::string::npos) << different;
}

}  // namespace
}  // namespace kintsugi
