#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "comm/exchange.h"
#include "core/trace.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

// Four ranks on two hosts whose clocks differ by an hour; a round trip takes far less than a
// second.
TEST(ClockOffset, RanksOfOtherHostsFindTheClockOfRank0) {
  std::mutex mutex;
  std::vector<double> offsets(4);
  run_ranks(4, [&](World& world) {
    const bool far = world.rank() % 2 == 1;
    const auto group = world.split("world", 0, world.rank());
    const double offset =
        clock_offset(*group, far ? "b" : "a", [&] { return Trace::now() + (far ? 3600.0 : 0.0); });
    const std::lock_guard lock(mutex);
    offsets[static_cast<std::size_t>(world.rank())] = offset;
  });
  EXPECT_EQ(offsets[0], 0);
  EXPECT_NEAR(offsets[1], -3600, 1);
  EXPECT_EQ(offsets[2], 0);
  EXPECT_NEAR(offsets[3], -3600, 1);
}

}  // namespace
}  // namespace kintsugi
