#include "comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "core/file.h"
#include "support/temporary_directory.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A rank in one group, after `calls` all-reduces of 8 bytes; it waits for the last one if `waits`.
RankCalls::Group group_of(std::int64_t rank, std::int64_t calls, bool waits, double waiting_s = 1) {
  RankCalls::Group group{.name = "dp", .split = 2, .color = 0, .rank = rank, .size = 3};
  group.calls = calls;
  for (std::int64_t n = 1; n <= calls; ++n) group.recent.push_back({n, Collective::AllReduce, 8});
  if (waits) {
    group.waiting_for = calls;
    group.waiting_s = waiting_s;
  }
  return group;
}

RankCalls rank_with(std::int64_t rank, RankCalls::Group group) {
  return {
      .rank = rank, .step = 5, .node = "n" + std::to_string(rank), .groups = {std::move(group)}};
}

TEST(FlightRecorder, NamesTheRankThatDidNotCall) {
  const RankFailure found =
      diagnose({rank_with(0, group_of(0, 4, true)), rank_with(1, group_of(1, 3, false)),
                rank_with(2, group_of(2, 4, true))});
  EXPECT_EQ(found.kind, FailureKind::Stuck);
  EXPECT_EQ(found.text,
            "rank 1 (node n1) did not make call 4 of group dp (all_reduce, 8 B), for which ranks 0 "
            "(node n0), 2 wait");
  EXPECT_THAT(found.culprits, ElementsAre(Culprit{1, "n1"}));
}

TEST(FlightRecorder, NamesCallsThatDiffer) {
  RankCalls odd = rank_with(1, group_of(1, 4, true));
  odd.groups[0].recent[3].kind = Collective::AllGather;
  const RankFailure found = diagnose({rank_with(0, group_of(0, 4, true)), odd});
  EXPECT_THAT(found.text,
              HasSubstr("ranks 0 and 1 disagree: call 4 of group dp (all_reduce, 8 B) against call "
                        "4 of group dp (all_gather, 8 B)"));
  EXPECT_THAT(found.culprits, ElementsAre());  // nobody knows which of the two is wrong
}

TEST(FlightRecorder, FindsNothingWhereAllRanksAgree) {
  EXPECT_EQ(diagnose({rank_with(0, group_of(0, 4, true)), rank_with(1, group_of(1, 4, true))}),
            RankFailure{});
  EXPECT_EQ(diagnose({rank_with(0, group_of(0, 4, false)), rank_with(1, group_of(1, 2, false))}),
            RankFailure{});
  EXPECT_EQ(diagnose({}), RankFailure{});
}

// Two groups are stuck: the one that waits longer is the cause, the other one only follows.
TEST(FlightRecorder, TheLongestWaitIsTheCause) {
  RankCalls first = rank_with(0, group_of(0, 4, true, 9));
  RankCalls second = rank_with(1, group_of(1, 3, false));
  RankCalls::Group other = group_of(0, 7, false);
  other.name = "tp";
  other.split = 3;
  first.groups.push_back(other);
  other.calls = 8;
  other.recent.push_back({8, Collective::AllReduce, 8});
  other.waiting_for = 8;
  other.waiting_s = 2;
  other.rank = 1;
  RankCalls third{.rank = 2, .step = 5, .node = "n2", .groups = {other}};
  EXPECT_THAT(diagnose({first, second, third}).text,
              HasSubstr("rank 1 (node n1) did not make call 4"));
}

// Rank 0 waits for rank 1 in dp, and rank 1 for rank 2 in tp: only rank 2 is at fault, although
// rank 0 has waited longer.
TEST(FlightRecorder, ARankThatWaitsItselfIsNotAtFault) {
  RankCalls second = rank_with(1, group_of(1, 3, false));
  RankCalls::Group tp = group_of(0, 8, true, 2);
  tp.name = "tp";
  tp.split = 3;
  second.groups.push_back(tp);
  tp.rank = 1;
  tp.calls = 7;
  tp.recent.pop_back();
  tp.waiting_for = 0;
  tp.waiting_s = 0;
  const RankCalls first = rank_with(0, group_of(0, 4, true, 9)), third = rank_with(2, tp);
  const RankFailure found = diagnose({first, second, third});
  EXPECT_THAT(found.text, HasSubstr("rank 2 (node n2) did not make call 8 of group tp"));
  EXPECT_THAT(found.culprits, ElementsAre(Culprit{2, "n2"}));
  // Rank 2 does not answer: nothing is known about it.
  EXPECT_THAT(diagnose({first, second}).culprits, ElementsAre());
}

TEST(FlightRecorder, NamesTheSenderOfAMissingMessage) {
  RankCalls::Group waiting = group_of(1, 0, false);
  waiting.calls = 3;
  waiting.recent = {{3, Collective::Receive, 64, 0}};
  waiting.waiting_for = 3;
  waiting.waiting_s = 4;
  RankCalls::Group sender = group_of(0, 0, false);
  sender.calls = 40;  // a pipeline rank makes other calls than its neighbour
  EXPECT_EQ(diagnose({rank_with(0, sender), rank_with(1, waiting)}).text,
            "rank 0 (node n0) did not send the message of call 3 of group dp (receive, 64 B), for "
            "which rank 1 (node n1) waits");
}

TEST(FlightRecorder, AKilledProcessLeavesItsRecord) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory / "rank";
  const pid_t child = fork();
  if (child == 0) {
    FlightRecorder recorder(7, "nid001", file);
    const int group = recorder.add_group("tp", 3, 4, 1, 2);
    recorder.begin_step(11);
    for (int i = 0; i < 100; ++i) recorder.call(group, Collective::AllGather, 1000 + i);
    recorder.begin_wait(group, 100);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const auto position = FlightRecorder::read(file);
  ASSERT_TRUE(position);
  EXPECT_EQ(position->rank, 7);
  EXPECT_EQ(position->node, "nid001");
  EXPECT_EQ(position->step, 11);
  ASSERT_EQ(position->groups.size(), 1u);
  const RankCalls::Group& group = position->groups[0];
  EXPECT_EQ(group.name, "tp");
  EXPECT_EQ(group.split, 3);
  EXPECT_EQ(group.color, 4);
  EXPECT_EQ(group.calls, 100);
  EXPECT_EQ(group.waiting_for, 100);
  EXPECT_EQ(group.recent.back().number, 100);
  EXPECT_EQ(group.recent.back().bytes, 1099);
  EXPECT_EQ(group.recent.size(), 16u);
}

TEST(FlightRecorder, RefusesOtherFiles) {
  const TemporaryDirectory directory;
  EXPECT_FALSE(FlightRecorder::read(directory / "none"));
  directory.write("short", "KKFLGHT1");
  EXPECT_FALSE(FlightRecorder::read(directory / "short"));
  directory.write("other", std::string(1 << 20, 'x'));
  EXPECT_FALSE(FlightRecorder::read(directory / "other"));
  EXPECT_FALSE(position_from_json("{}"));
  EXPECT_FALSE(position_from_json("["));
  EXPECT_FALSE(position_from_json(R"({"rank": "x", "step": 1, "node": "", "groups": []})"));
}

TEST(FlightRecorder, JsonKeepsEverything) {
  RankCalls position = rank_with(3, group_of(1, 2, true, 1.5));
  position.groups[0].recent[1].peer = 2;
  const auto again = position_from_json(to_json(position));
  ASSERT_TRUE(again);
  EXPECT_EQ(to_json(*again), to_json(position));
  EXPECT_EQ(again->groups[0].recent[1].peer, 2);
}

TEST(FlightRecorder, TheFileIsRemovedAtTheEnd) {
  const TemporaryDirectory directory;
  {
    const FlightRecorder recorder(0, "n", directory / "rank");
    EXPECT_TRUE(std::filesystem::exists(directory / "rank"));
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "rank"));
  // Without a file the record is kept in memory.
  FlightRecorder recorder(0, "n", directory / "none/rank");
  EXPECT_EQ(recorder.call(recorder.add_group("dp", 0, 0, 0, 2), Collective::Barrier, 0), 1);
}

TEST(FlightRecorder, OnlyWaitsInsideAStepCount) {
  FlightRecorder recorder(0, "n");
  const int group = recorder.add_group("dp", 0, 0, 0, 2);
  recorder.begin_wait(group, recorder.call(group, Collective::AllReduce, 8));
  EXPECT_EQ(recorder.waiting_s(), 0);
  recorder.begin_step(1);
  EXPECT_GT(recorder.waiting_s(), 0);
  recorder.end_wait(group);
  EXPECT_EQ(recorder.waiting_s(), 0);
}

// Real groups: rank 1 omits the third call. The others wait for it, and the records say so.
TEST(FlightRecorder, RecordsGroups) {
  std::vector<RankCalls> positions(3);
  run_ranks(3, [&](World& world) {
    FlightRecorder recorder(world.rank(), "n");
    RecordedWorld recorded(world, recorder, 10);
    const auto alone = recorded.split("alone", world.rank(), 0);
    const auto group = recorded.split("dp", 0, world.rank());
    double value = 1;
    const auto sum = [&] {
      group->wait(group->all_reduce(Tensor(&value, DType::F64, {1}), ReduceOp::Sum));
    };
    sum();
    group->barrier();
    EXPECT_EQ(value, 3);
    if (world.rank() != 1) {
      std::thread late([&] { sum(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      positions[static_cast<std::size_t>(world.rank())] = recorder.position();
      late.join();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      positions[1] = recorder.position();
      sum();
    }
  });
  ASSERT_EQ(positions[0].groups.size(), 1u);  // a group of one rank is not recorded
  EXPECT_EQ(positions[0].groups[0].split, 11);
  EXPECT_THAT(diagnose(positions).text, HasSubstr("rank 1 (node n) did not make call 3 of group dp "
                                                  "(all_reduce, 8 B), for which ranks 0"));
}

}  // namespace
}  // namespace kintsugi
