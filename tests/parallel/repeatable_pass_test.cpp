// Which passes a device may record and replay: those in which no rank meets another.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend_impl.h"
#include "comm/counting_communicator.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

constexpr std::array kGroups = {"tp", "cp", "pp", "kv", "tied", "copy", "shard", "replica"};

// Of one rank: how many passes it replays, and how many calls to other ranks were among them.
struct Replays {
  int passes = 0;
  std::int64_t calls = 0;
  CountingWorld* world = nullptr;

  std::int64_t made() const {
    std::int64_t sum = 0;
    for (const char* group : kGroups)
      for (const Collective kind :
           {Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather,
            Collective::Broadcast, Collective::Send, Collective::Receive})
        sum += world->traffic(group)[kind].calls;
    return sum;
  }
};
thread_local Replays replays;  // ranks are threads

class CountingBackend : public CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  void replay(std::uint64_t, const std::function<void()>& calls) override {
    const std::int64_t before = replays.made();
    calls();
    replays.calls += replays.made() - before;
    ++replays.passes;
  }
};

struct LayoutPasses {
  RankLayout layout;
  int passes;  // of the four that a rank makes in a step
  bool offload = false;
};

TEST(RepeatablePass, MeetsNobody) {
  const LayoutPasses cases[] = {
      {{}, 4},
      {{}, 0, true},
      {{.dp = 2}, 3},
      {{.dp = 2, .zero = 1}, 2},
      {{.dp = 4, .zero = 1, .shard_group = 2}, 2},
      {{.dp = 2, .zero = 2}, 0},
      {{.dp = 2, .zero = 3}, 0},
      {{.tp = 2}, 0},
      {{.cp = 2}, 0},
      {{.pp = 2}, 0},
  };
  for (const auto& [layout, passes, offload] : cases) {
    SCOPED_TRACE(to_string(layout));
    Training training{
        .model = tiny_model("llama-gqa", 4), .sequences = 4 * layout.dp, .micro = 1, .length = 8};
    training.offload.gradients = offload;
    training.backend = [](int threads) -> std::unique_ptr<Backend> {
      return std::make_unique<CountingBackend>(threads);
    };
    std::vector<std::unique_ptr<CountingWorld>> worlds(static_cast<std::size_t>(layout.ranks()));
    on_ranks(
        layout, training,
        [&, expected = passes](const Member& member) {
          replays = {.world = worlds[static_cast<std::size_t>(member.world.rank())].get()};
          for (int step = 1; step <= 3; ++step) member.step(step);
          EXPECT_EQ(replays.passes, 3 * expected);
          EXPECT_EQ(replays.calls, 0);
        },
        true,
        [&](World& world) -> World& {
          auto& counting = worlds[static_cast<std::size_t>(world.rank())];
          counting = std::make_unique<CountingWorld>(world);
          return *counting;
        });
  }
}

}  // namespace
}  // namespace kintsugi
