#include <gtest/gtest.h>

#include <vector>

#include "comm/checked_communicator.h"
#include "comm/communicator.h"
#include "support/collective_cases.h"
#include "support/counting_communicator.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

template <class T>
Tensor tensor(std::vector<T>& data) {
  return {data.data(), DTypeOf<T>::value, {static_cast<std::int64_t>(data.size())}};
}

// The textbook volumes of ring algorithms: n bytes over N ranks.
TEST(CountingCommunicator, CountsByTheRingFormulas) {
  run_ranks(4, [](World& threads) {
    CountingWorld world(threads);
    const auto group = world.split("dp", 0, world.rank());
    std::vector<float> full(40), shard(10);
    group->wait(group->all_reduce(tensor(full)));
    group->wait(group->reduce_scatter(tensor(shard), tensor(full)));
    group->wait(group->all_gather(tensor(full), tensor(shard)));
    group->wait(group->all_gather(tensor(full), tensor(shard)));
    group->wait(group->broadcast(tensor(shard), 2));
    if (world.rank() == 1) group->wait(group->send(tensor(shard), 3));
    if (world.rank() == 3) group->wait(group->receive(tensor(shard), 1));
    group->barrier();
    const Traffic& traffic = world.traffic("dp");
    EXPECT_EQ(traffic[Collective::AllReduce].bytes, 2 * 160 * 3 / 4);
    EXPECT_EQ(traffic[Collective::ReduceScatter].bytes, 160 * 3 / 4);
    EXPECT_EQ(traffic[Collective::AllGather].bytes, 2 * 160 * 3 / 4);
    EXPECT_EQ(traffic[Collective::AllGather].calls, 2);
    EXPECT_EQ(traffic[Collective::Broadcast].bytes, 40);
    EXPECT_EQ(traffic[Collective::Send].bytes, world.rank() == 1 ? 40 : 0);
    EXPECT_EQ(traffic[Collective::Receive].calls, world.rank() == 3 ? 1 : 0);
    EXPECT_EQ(traffic[Collective::Barrier].calls, 1);
    EXPECT_EQ(traffic.bytes(), 640 + (world.rank() == 1 ? 40 : 0));
    EXPECT_EQ(world.traffic("tp").bytes(), 0);
    world.reset();
    EXPECT_EQ(traffic.bytes(), 0);
  });
}

TEST(CountingCommunicator, AGroupOfOneSendsNothing) {
  LocalWorld local;
  CountingWorld world(local);
  const auto group = world.split("tp", 0, 0);
  check_collectives(*group);
  EXPECT_GT(world.traffic("tp")[Collective::AllReduce].calls, 0);
  EXPECT_EQ(world.traffic("tp").bytes(), 0);
}

TEST(CheckedCommunicator, AcceptsMatchingCalls) {
  for (const int ranks : {1, 3})
    run_ranks(ranks, [](World& threads) {
      CheckedWorld world(threads);
      check_collectives(*world.split("dp", 0, world.rank()));
    });
}

using Action = std::function<void(Communicator&, bool odd)>;

// The Failure of six ranks if world rank 3 (rank 1 in its group of three) differs.
std::string mismatch(const Action& action) {
  try {
    run_ranks(6, [&](World& threads) {
      CheckedWorld world(threads);
      const auto group = world.split("dp", world.rank() % 2, world.rank());
      group->barrier();
      action(*group, world.rank() == 3);
    });
  } catch (const Failure& failure) {
    return failure.what();
  }
  ADD_FAILURE() << "no Failure";
  return "";
}

TEST(CheckedCommunicator, NamesTheRankThatDiffers) {
  EXPECT_EQ(
      mismatch([](Communicator& group, bool odd) {
        std::vector<float> x(odd ? 4 : 3);
        group.wait(group.all_reduce(tensor(x)));
      }),
      "group dp, call 1: rank 3 (1 in the group) calls all_reduce (sum) of 4 fp32, but rank 1 "
      "and 1 more call all_reduce (sum) of 3 fp32");
  EXPECT_EQ(
      mismatch([](Communicator& group, bool odd) {
        std::vector<float> full(9), x(3);
        group.wait(odd ? group.all_gather(tensor(full), tensor(x))
                       : group.reduce_scatter(tensor(x), tensor(full)));
      }),
      "group dp, call 1: rank 3 (1 in the group) calls all_gather of 9 fp32, but rank 1 and 1 "
      "more call reduce_scatter of 9 fp32");
  EXPECT_EQ(
      mismatch([](Communicator& group, bool odd) {
        std::vector<float> x(3);
        std::vector<std::int32_t> y(3);
        group.wait(group.broadcast(odd ? tensor(y) : tensor(x), 2));
      }),
      "group dp, call 1: rank 3 (1 in the group) calls broadcast of 3 int32 from 2, but rank 1 "
      "and 1 more call broadcast of 3 fp32 from 2");
  EXPECT_EQ(mismatch([](Communicator& group, bool odd) {
              std::vector<float> x(3);
              if (odd) group.barrier();
              group.wait(group.all_reduce(tensor(x), ReduceOp::Max));
            }),
            "group dp, call 1: rank 3 (1 in the group) calls barrier, but rank 1 and 1 more call "
            "all_reduce (max) of 3 fp32");
}

TEST(CheckedCommunicator, ChecksMessages) {
  EXPECT_EQ(mismatch([](Communicator& group, bool odd) {
              std::vector<float> x(3);
              std::vector<double> y(3);
              if (group.rank() == 0) group.wait(group.send(tensor(x), 1));
              if (group.rank() == 1) group.wait(group.receive(odd ? tensor(y) : tensor(x), 0));
            }),
            "group dp: rank 3 expects a message of 3 fp64 from rank 1, which sends 3 fp32");
}

// Like the NCCL groups: an empty message returns ticket 0.
class EmptyIsNothing : public ForwardingCommunicator {
 public:
  explicit EmptyIsNothing(std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(std::move(inner)) {}
  Work start(const Call& call) override {
    return is_message(call.kind) && call.whole().elements() == 0 ? Work{} : inner_->start(call);
  }
};

// Rank 0 sends three empty messages; the last one has another type than rank 1 expects. They are
// distinguished although none has a ticket.
TEST(CheckedCommunicator, DistinguishesEmptyMessages) {
  const auto exchange = [](bool same) {
    run_ranks(2, [&](World& world) {
      CheckedCommunicator group(
          std::make_unique<EmptyIsNothing>(world.split("pp", 0, world.rank())), world.rank(),
          world.split("pp", 0, world.rank()));
      std::vector<float> none;
      std::vector<std::int32_t> other;
      const int peer = 1 - world.rank();
      std::vector<Communicator::Work> works;
      if (world.rank() == 0) {
        works.push_back(group.send(tensor(none), peer));
        works.push_back(same ? group.send(tensor(none), peer) : group.send(tensor(other), peer));
      } else {
        works.push_back(group.receive(tensor(none), peer));
        works.push_back(group.receive(tensor(none), peer));
      }
      EXPECT_NE(works[0].ticket, works[1].ticket);
      for (const auto work : works) group.wait(work);
    });
  };
  exchange(true);
  try {
    exchange(false);
    ADD_FAILURE() << "the wrong type was not detected";
  } catch (const Failure& failure) {
    EXPECT_STREQ(failure.what(),
                 "group pp: rank 1 expects a message of 0 fp32 from rank 0, which sends 0 int32");
  }
}

}  // namespace
}  // namespace kintsugi
