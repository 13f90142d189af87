#include "comm/lifeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "comm/launch_environment.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

// Collects the callbacks of all ranks.
struct Record {
  std::mutex mutex;
  std::vector<std::string> messages, failures, ends;
  std::vector<RankFailure> reported;  // without their texts

  Lifeline::Callbacks callbacks(int own) {
    return {.on_message =
                [this](int rank, const std::string& text) {
                  const std::lock_guard lock(mutex);
                  messages.push_back(fmt::format("{}: {}", rank, text));
                },
            .on_failure =
                [this](const RankFailure& failure, const auto&) {
                  const std::lock_guard lock(mutex);
                  failures.push_back(fmt::format("{} {}", failure.exit_code(), failure.text));
                  reported.push_back(failure);
                  reported.back().text.clear();
                },
            .end =
                [this, own](const RankFailure& failure) {
                  const std::lock_guard lock(mutex);
                  ends.push_back(fmt::format("{} {} {}", own, failure.exit_code(), failure.text));
                }};
  }
  std::size_t count_ends() {
    const std::lock_guard lock(mutex);
    return ends.size();
  }
  std::vector<std::string> sorted_ends() {
    std::sort(ends.begin(), ends.end());
    return ends;
  }
};

using Texts = std::vector<std::string>;

RankFailure error_of(int rank, const std::string& text) {
  return {.kind = FailureKind::Error, .culprits = {{rank}}, .text = text};
}

TEST(Lifeline, MessagesAndACleanEnd) {
  Record record;
  run_ranks(5, [&](World& world) {
    Lifeline lifeline(world, record.callbacks(world.rank()));
    if (world.rank() == 3) {
      lifeline.say("one");
      lifeline.say(std::string(3000, 'x'));
    }
    if (world.rank() == 0) lifeline.say("mine");
    lifeline.goodbye();
  });
  std::sort(record.messages.begin(), record.messages.end());
  EXPECT_EQ(record.messages, (Texts{"0: mine", "3: one", "3: " + std::string(3000, 'x')}));
  EXPECT_TRUE(record.failures.empty());
  EXPECT_TRUE(record.ends.empty());
}

TEST(Lifeline, AFailureIsReportedOnceAndEndsTheOthers) {
  Record record;
  run_ranks(4, [&](World& world) {
    Lifeline lifeline(world, record.callbacks(world.rank()));
    if (world.rank() == 2)
      lifeline.fail({.kind = FailureKind::Mistake, .text = "no memory"});
    else
      lifeline.goodbye();  // returns, because the end() of this test does not end the process
  });
  EXPECT_EQ(record.failures, Texts{"2 rank 2: no memory"});
  EXPECT_EQ(record.sorted_ends(),
            (Texts{"0 2 rank 2: no memory", "1 2 rank 2: no memory", "3 2 rank 2: no memory"}));
}

TEST(Lifeline, RankZeroFails) {
  Record record;
  run_ranks(3, [&](World& world) {
    Lifeline lifeline(world, record.callbacks(world.rank()));
    if (world.rank() == 0)
      lifeline.fail(error_of(0, "the disk is full"));
    else
      lifeline.goodbye();
  });
  EXPECT_EQ(record.failures, Texts{"1 rank 0: the disk is full"});
  EXPECT_EQ(record.sorted_ends(),
            (Texts{"1 1 rank 0: the disk is full", "2 1 rank 0: the disk is full"}));
}

// A killed process only closes its socket.
TEST(Lifeline, ALostRankIsNamed) {
  for (const int culprit : {0, 2}) {
    Record record;
    run_ranks(3, [&](World& world) {
      Lifeline lifeline(world, record.callbacks(world.rank()));
      if (world.rank() != culprit) lifeline.goodbye();
    });
    const std::string text =
        fmt::format("1 rank {} was lost: its process exited unexpectedly (killed?)", culprit);
    EXPECT_EQ(record.failures, culprit == 0 ? Texts{} : Texts{text});
    if (culprit != 0) {
      const RankFailure lost{.kind = FailureKind::Lost, .culprits = {{culprit, node_name()}}};
      EXPECT_EQ(record.reported, std::vector{lost});
    }
    EXPECT_EQ(record.sorted_ends(),
              culprit == 0 ? (Texts{"1 " + text, "2 " + text}) : (Texts{"0 " + text, "1 " + text}));
  }
}

TEST(Lifeline, ManyFailuresAtOnceAreOneReport) {
  Record record;
  run_ranks(6, [&](World& world) {
    Lifeline lifeline(world, record.callbacks(world.rank()));
    lifeline.fail(error_of(world.rank(), "all see the same"));
  });
  EXPECT_EQ(record.failures.size(), 1u);
}

// Every rank believes that it is on its own node.
class SpreadWorld : public World {
 public:
  explicit SpreadWorld(World& inner) : World({inner.rank(), inner.size(), 0, 1}), inner_(inner) {}
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    return inner_.split(name, color, key);
  }

 private:
  World& inner_;
};

TEST(Lifeline, FindsRankZeroAmongItsAddresses) {
  Record record;
  run_ranks(3, [&](World& threads) {
    SpreadWorld world(threads);
    Lifeline lifeline(world, record.callbacks(world.rank()));
    if (world.rank() == 1) lifeline.say("here");
    lifeline.goodbye();
  });
  EXPECT_EQ(record.messages, Texts{"1: here"});
  EXPECT_TRUE(record.ends.empty());
}

// A rank that is stopped keeps its connection but sends no beats. A stopped rank 0 reports itself
// when it continues, although the others are gone by then; one that is left hears it from rank 0.
TEST(Lifeline, ASilentRankIsGivenUp) {
  for (const int culprit : {0, 2}) {
    Record record;
    run_ranks(3, [&](World& threads) {
      SpreadWorld world(threads);
      const LifelineLimits limits{.silence_s = 1.5, .beat_s = world.rank() == culprit ? 1000 : 0.2};
      Lifeline lifeline(world, record.callbacks(world.rank()), limits);
      if (world.rank() != culprit) return lifeline.goodbye();
      for (int i = 0; i < 100 && record.count_ends() < 2; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    });
    ASSERT_GE(record.ends.size(), 2u) << culprit;
    const std::string stopped = fmt::format("rank 0 was stopped on node {}: rank ", node_name()),
                      lost = fmt::format("rank {} was lost on node {}: no sign of life for 2 s",
                                         culprit, node_name());
    for (const std::string& end : record.ends) {
      const bool own = culprit == 0 && end.starts_with("0 ");
      const bool says_stopped = culprit == 0 && end.find(stopped) != std::string::npos;
      EXPECT_TRUE(says_stopped || (!own && end.find(lost) != std::string::npos)) << end;
    }
    const RankFailure expected{.kind = FailureKind::Silent, .culprits = {{culprit, node_name()}}};
    EXPECT_EQ(record.reported, std::vector{expected}) << culprit;
  }
}

// Rank 1 computes and does not make the call that the others wait for.
TEST(Lifeline, ACallThatNeverEndsNamesTheMissingRank) {
  Record record;
  run_ranks(3, [&](World& world) {
    const int rank = world.rank();
    FlightRecorder recorder(rank, "node");
    const int group = recorder.add_group("dp", 0, 0, rank, 3);
    recorder.begin_step(1);
    recorder.call(group, Collective::AllReduce, 64);
    if (rank != 1) recorder.begin_wait(group, recorder.call(group, Collective::Barrier, 0));
    Lifeline::Callbacks callbacks = record.callbacks(rank);
    callbacks.waiting_s = [&] { return recorder.waiting_s(); };
    callbacks.positions = [&](int) { return std::vector{to_json(recorder.position())}; };
    Lifeline lifeline(world, callbacks, {.silence_s = 10, .call_s = 0.5, .beat_s = 0.1});
    for (int i = 0; i < 100 && record.count_ends() < 3; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  ASSERT_EQ(record.failures.size(), 1u);
  EXPECT_NE(record.failures[0].find("s (comm.timeout_s): rank 1 (node node) did not make call 2 of "
                                    "group dp (barrier), for which ranks 0 (node node), 2 wait"),
            std::string::npos)
      << record.failures[0];
  EXPECT_EQ(record.ends.size(), 3u);
  const RankFailure expected{.kind = FailureKind::Stuck, .culprits = {{1, "node"}}};
  EXPECT_EQ(record.reported, std::vector{expected});
}

// The watcher of NCCL on rank 2 reports a call that rank 1 has not made, or that all have made.
TEST(Lifeline, ARankThatWaitsIsNotBlamed) {
  for (const RankFailure& given :
       {RankFailure{.kind = FailureKind::Stuck, .culprits = {{1}}}, RankFailure{},
        RankFailure{.kind = FailureKind::Error, .culprits = {{2}}}}) {
    Record record;
    run_ranks(3, [&](World& world) {
      Lifeline lifeline(world, record.callbacks(world.rank()));
      RankFailure failure = given;
      failure.text = "all_reduce number 5 did not finish";
      if (world.rank() == 2)
        lifeline.fail(failure);
      else
        lifeline.goodbye();
    });
    RankFailure expected = given;
    for (Culprit& culprit : expected.culprits) culprit.node = node_name();
    EXPECT_EQ(record.reported, std::vector{expected});
    EXPECT_EQ(record.failures, Texts{"1 rank 2: all_reduce number 5 did not finish"});
  }
}

TEST(Lifeline, OneRankNeedsNoSockets) {
  Record record;
  LocalWorld world;
  Lifeline lifeline(world, record.callbacks(0));
  lifeline.say("hello");
  lifeline.fail(error_of(0, "odd"));
  lifeline.goodbye();
  EXPECT_EQ(record.messages, Texts{"0: hello"});
  EXPECT_EQ(record.failures, Texts{"1 rank 0: odd"});
}

TEST(Socket, FramesArriveWholeAndInOrder) {
  Listener listener(true);
  Socket client = connect_to("127.0.0.1", listener.port(), 1000);
  ASSERT_TRUE(client);
  Socket server = listener.accept();
  ASSERT_TRUE(server);
  ASSERT_TRUE(client.send('A', ""));
  ASSERT_TRUE(client.send('B', std::string(10000, 'b')));
  ASSERT_TRUE(client.send('C', std::string(100000, 'c')));
  EXPECT_EQ(server.receive(1000)->type, 'A');
  EXPECT_EQ(server.receive(1000)->text, std::string(10000, 'b'));
  EXPECT_EQ(server.receive(1000)->text, std::string(65536, 'c'));  // truncated
  EXPECT_FALSE(server.receive(1));
  client.close();
  EXPECT_FALSE(server.read());
  const int left_port = Listener(true).port();
  EXPECT_FALSE(connect_to("127.0.0.1", left_port, 1000));
}

}  // namespace
}  // namespace kintsugi
