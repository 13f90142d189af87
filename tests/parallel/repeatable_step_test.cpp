// A device may record and replay only micro-batches without communication.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend_impl.h"
#include "support/counting_communicator.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

constexpr std::array kRepeatedGroups = {"tp", "cp", "pp", "kv", "tied", "copy", "shard", "replica"};

// The micro-batches that one rank replays, and the communication calls in them.
struct Replays {
  int micro_batches = 0;
  std::int64_t calls = 0;
  CountingWorld* world = nullptr;

  std::int64_t made() const {
    std::int64_t sum = 0;
    for (const char* group : kRepeatedGroups)
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
    ++replays.micro_batches;
  }
};

struct ReplayCase {
  RankLayout layout;
  int replayed;  // of the four micro-batches of a rank's step
  bool offload = false;
};

TEST(RepeatableStep, HasNoCommunication) {
  const ReplayCase cases[] = {
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
  for (const auto& [layout, replayed, offload] : cases) {
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
        [&, expected = replayed](const Member& member) {
          replays = {.world = worlds[static_cast<std::size_t>(member.world.rank())].get()};
          for (int step = 1; step <= 3; ++step) member.step(step);
          EXPECT_EQ(replays.micro_batches, 3 * expected);
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
