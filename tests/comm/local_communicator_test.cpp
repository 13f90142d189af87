#include <gtest/gtest.h>

#include <vector>

#include "comm/communicator.h"
#include "support/collective_cases.h"

namespace kintsugi {
namespace {

TEST(LocalCommunicator, EveryCollective) {
  LocalWorld world;
  EXPECT_EQ(world.size(), 1);
  const auto group = world.split("dp", 7, 3);
  EXPECT_EQ(group->name(), "dp");
  check_collectives(*group);
}

TEST(LocalCommunicator, WrongOperandsAreFailures) {
  LocalCommunicator group("tp");
  std::vector<float> data(12);
  const Tensor x(data.data(), DType::F32, {3, 4});
  EXPECT_THROW(group.all_reduce(x.part(1, 0, 2), ReduceOp::Sum), Failure);
  EXPECT_THROW(group.all_gather(x, x.rows(0, 1)), Failure);
  EXPECT_THROW(group.all_gather(x, Tensor(data.data(), DType::I32, {12})), Failure);
  EXPECT_THROW(group.broadcast(x, 1), Failure);
  EXPECT_THROW(group.send(x, 0), Failure);
}

}  // namespace
}  // namespace kintsugi
