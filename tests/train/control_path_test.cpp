// Communication of the ranks of a large job in a step, besides gradients and weights.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>

#include "comm/communicator.h"
#include "comm/exchange.h"
#include "support/counting_communicator.h"
#include "support/echo_communicator.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

constexpr int kRanks = 4096;

// Messages of a small all-reduce by recursive doubling; a tree sends about as many.
int messages_per_rank(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

// The groups of rank 0 of 4,096 data ranks that all do the same. Calls in the group of all ranks
// are counted.
Groups echoed_groups(Backend& backend, Traffic& world) {
  using Made = std::unique_ptr<Communicator>;
  return make_groups({.dp = kRanks, .shard_group = 1}, {},
                     [&](const GroupSpec& spec, const GroupMembership& position) -> Made {
                       if (position.size == 1)
                         return std::make_unique<LocalCommunicator>(spec.name, &backend);
                       Made echo = std::make_unique<EchoCommunicator>(spec.name, 0, kRanks);
                       if (spec.kind != GroupKind::World) return echo;
                       return std::make_unique<CountingCommunicator>(std::move(echo), world);
                     });
}

// Collectives of all ranks in a run of `steps` steps.
Traffic traffic_of(int steps, int eval_every) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(300));
  const auto backend = make_cpu_backend(1);
  Traffic traffic;
  const Groups groups = echoed_groups(*backend, traffic);
  Trainer trainer(
      *backend,
      parse_run_config(
          small_config(corpus, (directory / "run").string(),
                       fmt::format("steps: {}, eval_every: {}, save: false", steps, eval_every)),
          "test.yaml", {fmt::format("batch={{global: {}, micro: 1}}", kRanks)}),
      groups);
  testing::internal::CaptureStdout();
  trainer.run(ResumeMode::Never);
  testing::internal::GetCapturedStdout();
  return traffic;
}

TEST(ControlPath, AStepOf4096RanksMakesOneSmallAllReduce) {
  const Traffic two = traffic_of(2, 0), five = traffic_of(5, 0);
  const auto more = [&](Collective kind) { return five[kind].calls - two[kind].calls; };
  std::int64_t calls = 0;
  for (int kind = 0; kind < kCollectives; ++kind) calls += more(static_cast<Collective>(kind));
  EXPECT_EQ(more(Collective::AllReduce), 3);  // for three more steps
  EXPECT_EQ(calls, 3);
  // Ten numbers, twice over a ring.
  EXPECT_LE((five.bytes() - two.bytes()) / 3, 2 * 10 * sizeof(double));
  EXPECT_EQ(calls / 3 * messages_per_rank(kRanks), 12);
}

TEST(ControlPath, AValidationOf4096RanksAddsOneAllReduce) {
  const Traffic without = traffic_of(2, 0), with = traffic_of(2, 2);
  for (int kind = 0; kind < kCollectives; ++kind) {
    const auto collective = static_cast<Collective>(kind);
    EXPECT_EQ(with[collective].calls - without[collective].calls,
              collective == Collective::AllReduce ? 1 : 0)
        << to_string(collective);
  }
}

// Without an error, only one number is reduced; no rank gathers data of all ranks.
TEST(ControlPath, WorkOf4096RanksTogetherIsOneNumber) {
  Traffic traffic;
  CountingCommunicator group(std::make_unique<EchoCommunicator>("world", 5, kRanks), traffic);
  together(group, [] {});
  EXPECT_EQ(traffic[Collective::AllReduce].calls, 1);
  EXPECT_LE(traffic.bytes(), 2 * sizeof(std::int64_t));
  EXPECT_EQ(traffic[Collective::AllGather].calls, 0);
}

}  // namespace
}  // namespace kintsugi
