#include "comm/exchange.h"

#include <gtest/gtest.h>

#include <string>

#include "backend/cpu/cpu_backend.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

// The error that each of six ranks throws if `work` throws on some.
template <class Error>
std::string thrown_by_all(const std::function<void(int rank)>& work) {
  std::string text;
  run_ranks(6, [&](World& world) {
    const auto group = world.split("control", 0, world.rank());
    try {
      together(*group, [&] { work(world.rank()); });
      ADD_FAILURE() << "rank " << world.rank() << " continues";
    } catch (const Error& error) {
      if (world.rank() == 0) text = error.what();
      group->barrier();  // all ranks have caught the error
    }
  });
  return text;
}

TEST(Together, ARankThatThrowsIsNamedOnAll) {
  EXPECT_EQ(thrown_by_all<SharedUserError>([](int rank) {
              if (rank == 3) user_error("the file is gone");
            }),
            "rank 3: the file is gone");
  EXPECT_EQ(thrown_by_all<SharedFailure>([](int rank) {
              if (rank == 5) failure("the disk is full");
            }),
            "rank 5: the disk is full");
}

TEST(Together, AnErrorOfAllRanksIsReportedOnce) {
  EXPECT_EQ(thrown_by_all<SharedUserError>([](int) { user_error("no such key"); }), "no such key");
}

TEST(Together, TheErrorOfTheLowestRankIsReported) {
  EXPECT_EQ(thrown_by_all<SharedUserError>([](int rank) {
              if (rank == 4) failure("something else");
              if (rank == 2 || rank == 3 || rank == 5) user_error("node 1 has no data");
            }),
            "rank 2 and 2 more: node 1 has no data");
}

TEST(Together, LongMessagesAreTruncated) {
  const std::string text = thrown_by_all<SharedUserError>([](int rank) {
    if (rank == 1) throw UserError(std::string(1 << 20, 'x'));
  });
  EXPECT_LT(text.size(), std::size_t{1} << 16);
}

// Rank r sends 10 r + q elements to rank q.
TEST(ExchangeCounts, OfTheDeviceAreKnownToBothSides) {
  run_ranks(3, [](World& world) {
    const auto backend = make_cpu_backend();
    const auto group = world.split("experts", 0, world.rank());
    std::vector<std::int64_t> sent, expected, received(3);
    for (int other = 0; other < 3; ++other) {
      sent.push_back(10 * world.rank() + other);
      expected.push_back(10 * other + world.rank());
    }
    const ExchangeCounts counts =
        exchange_counts(*group, *backend, Tensor(received.data(), DType::I64, {3}),
                        Tensor(sent.data(), DType::I64, {3}));
    EXPECT_EQ(counts.sent, sent);
    EXPECT_EQ(counts.received, expected);
    EXPECT_EQ(received, expected) << "in the memory of the device";
  });
}

// What all ranks throw together.
RankFailure shared_by_all(const std::function<void(int rank)>& work) {
  RankFailure failure;
  run_ranks(6, [&](World& world) {
    const auto group = world.split("control", 0, world.rank());
    try {
      together(*group, [&] { work(world.rank()); });
    } catch (const std::exception& error) {
      if (world.rank() == 4) failure = failure_of(error, {});
    }
    group->barrier();
  });
  return failure;
}

TEST(Together, TheFailureHasItsKindItsCulpritsAndItsFile) {
  EXPECT_EQ(shared_by_all([](int rank) {
              if (rank == 2 || rank == 5) failure("no memory");
            }),
            (RankFailure{.kind = FailureKind::Error,
                         .culprits = {{2}, {5}},
                         .text = "rank 2 and 1 more: no memory"}));
  EXPECT_EQ(shared_by_all([](int rank) {
              if (rank == 3) damaged_file("a/b", "{} is damaged", "a/b");
            }),
            (RankFailure{.kind = FailureKind::DamagedFile,
                         .culprits = {{3}},
                         .file = "a/b",
                         .text = "rank 3: a/b is damaged"}));
  // Of all ranks: nobody is at fault.
  EXPECT_EQ(shared_by_all([](int) { user_error("no such key"); }),
            (RankFailure{.kind = FailureKind::Mistake, .text = "no such key"}));
  // A rank that reports what another one did is not at fault itself.
  const RankFailure stuck{.kind = FailureKind::Stuck, .culprits = {{1, "n1"}}, .text = "waited"};
  EXPECT_EQ(shared_by_all([&](int rank) {
              if (rank == 0) throw CommunicationFailure(stuck);
            }).culprits,
            stuck.culprits);
}

TEST(RankFailure, AMessageFitsInAFrameAndMayBeAnything) {
  RankFailure large{.kind = FailureKind::Lost, .text = std::string(1 << 20, '\xff')};
  for (int rank = 0; rank < 100'000; ++rank) large.culprits.push_back({rank, "nid001234"});
  const std::string message = to_message(large);
  EXPECT_LT(message.size(), std::size_t{64} << 10);
  EXPECT_EQ(failure_from_message(message).kind, FailureKind::Lost);
  EXPECT_EQ(failure_from_message(message).node(), "nid001234");
  EXPECT_EQ(failure_from_message("no JSON"), (RankFailure{.text = "no JSON"}));
}

TEST(TextOf, IsTheTextOfTheRootOnAllRanks) {
  run_ranks(5, [](World& world) {
    const auto group = world.split("control", 0, world.rank());
    for (const int root : {0, 3})
      EXPECT_EQ(text_of(*group, root, "rank " + std::to_string(world.rank())),
                "rank " + std::to_string(root));
    EXPECT_EQ(text_of(*group, 1, world.rank() == 1 ? "" : "not me"), "");
  });
}

}  // namespace
}  // namespace kintsugi
