// The stand-in for RCCL (tests/emulator/rocm), with ranks in processes of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/nccl/library.h"
#include "support/paths.h"
#include "support/sanitizers.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nccl::Comm;
using nccl::ElementType;
using nccl::Library;
using nccl::Reduction;
using nccl::Result;
using nccl::UniqueId;

constexpr Result kSystemError{2}, kInvalidUsage{5}, kRemoteError{6};

gpu::Stream stream_number(std::uintptr_t number) { return reinterpret_cast<gpu::Stream>(number); }

// One rank, in its process.
struct Rank {
  const Library& nccl;
  const SharedLibrary& hip;
  const int rank, ranks;
  Comm comm = nullptr;
  gpu::Stream stream = stream_number(1);

  void check(Result result) const { EXPECT_EQ(result, Result::Success) << nccl.describe(result); }
  void synchronize(gpu::Stream which) const {
    EXPECT_EQ(hip.call("hipStreamSynchronize", static_cast<void*>(which)), 0);
  }
  void synchronize() const { synchronize(stream); }
  Result error() const {
    Result error = Result::Success;
    check(nccl.comm_get_async_error(comm, &error));
    return error;
  }
};

class RcclStandIn : public testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitizer)
      GTEST_SKIP() << "skipped under the thread sanitizer: no threads in forked processes";
    fs::create_directories(root_ / "opt/rocm/lib");
    fs::create_symlink(rocm_stand_in("alone/librccl.so.1"), root_ / "opt/rocm/lib/librccl.so.1");
    fs::create_symlink(fake_library("hip_streams"), root_ / "opt/rocm/lib/libamdhip64.so.6");
  }

  // Calls f in as many processes, with a communicator of all of them.
  void in_processes(int ranks, const std::function<void(Rank&)>& f) {
    const Library nccl("hip", root_.path());
    ASSERT_EQ(nccl.get_unique_id(&id_), Result::Success);
    std::fflush(nullptr);
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      run_rank(nccl, rank, ranks, f);
      std::fflush(nullptr);
      _exit(HasFailure() ? 1 : 0);
    }
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    const std::string name = id_.bytes.data();
    for (const auto& file : fs::directory_iterator("/dev/shm"))
      EXPECT_FALSE(file.path().string().starts_with("/dev/shm" + name)) << "left: " << file.path();
  }

 private:
  void run_rank(const Library& nccl, int number, int ranks, const std::function<void(Rank&)>& f) {
    alarm(30);  // rather than hang
    try {
      const SharedLibrary hip(root_.path(),
                              {.files = {"libamdhip64.so.6"}, .folders = {"opt/rocm/lib"}});
      Rank rank{.nccl = nccl, .hip = hip, .rank = number, .ranks = ranks};
      rank.check(nccl.comm_init_rank(&rank.comm, ranks, id_, number));
      f(rank);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }

  TemporaryDirectory root_;
  UniqueId id_{};
};

// Small whole numbers, whose sums every type has exactly.
template <class T>
std::vector<T> values(int rank, std::size_t first, std::size_t count) {
  std::vector<T> result;
  for (std::size_t i = first; i < first + count; ++i)
    result.push_back(T(static_cast<float>(static_cast<std::size_t>(rank + 1) * (i * 5 % 7))));
  return result;
}

template <class T>
std::vector<double> numbers(const std::vector<T>& x) {
  std::vector<double> result;
  for (const T value : x) result.push_back(static_cast<double>(static_cast<float>(value)));
  return result;
}

template <class T>
std::vector<double> sums(int ranks, std::size_t first, std::size_t count) {
  std::vector<double> result(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<double> part = numbers(values<T>(rank, first, count));
    for (std::size_t i = 0; i < count; ++i) result[i] += part[i];
  }
  return result;
}

template <class T>
void check_reductions(const Rank& r, std::size_t count) {
  const ElementType type = nccl::type_of(DTypeOf<T>::value);
  const auto n = static_cast<std::size_t>(r.ranks), own = static_cast<std::size_t>(r.rank) * count;
  std::vector<T> sum = values<T>(r.rank, 0, count), maximum = sum, source = sum, apart(count);
  std::vector<T> whole = values<T>(r.rank, 0, n * count), shard(count);
  const auto& [nccl, comm, stream] = std::tie(r.nccl, r.comm, r.stream);
  r.check(nccl.all_reduce(sum.data(), sum.data(), count, type, Reduction::Sum, comm, stream));
  r.check(
      nccl.all_reduce(maximum.data(), maximum.data(), count, type, Reduction::Max, comm, stream));
  r.check(nccl.all_reduce(source.data(), apart.data(), count, type, Reduction::Sum, comm, stream));
  r.check(
      nccl.reduce_scatter(whole.data(), shard.data(), count, type, Reduction::Sum, comm, stream));
  r.check(nccl.reduce_scatter(whole.data(), whole.data() + own, count, type, Reduction::Sum, comm,
                              stream));
  r.synchronize();
  EXPECT_EQ(numbers(sum), sums<T>(r.ranks, 0, count));
  EXPECT_EQ(numbers(apart), sums<T>(r.ranks, 0, count));
  EXPECT_EQ(numbers(maximum), numbers(values<T>(r.ranks - 1, 0, count)));
  EXPECT_EQ(numbers(shard), sums<T>(r.ranks, own, count));
  whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(own));
  whole.resize(count);
  EXPECT_EQ(numbers(whole), sums<T>(r.ranks, own, count));
}

template <class T>
void check_copies(const Rank& r, std::size_t count) {
  const ElementType type = nccl::type_of(DTypeOf<T>::value);
  const auto n = static_cast<std::size_t>(r.ranks), own = static_cast<std::size_t>(r.rank) * count;
  std::vector<T> gathered(n * count), shard = values<T>(r.rank, own, count);
  std::copy(shard.begin(), shard.end(), gathered.begin() + static_cast<std::ptrdiff_t>(own));
  r.check(r.nccl.all_gather(gathered.data() + own, gathered.data(), count, type, r.comm, r.stream));
  std::vector<std::vector<T>> sent;
  for (int root = 0; root < r.ranks; ++root) {
    sent.push_back(values<T>(r.rank, 3, count));
    r.check(r.nccl.broadcast(sent.back().data(), sent.back().data(), count, type, root, r.comm,
                             r.stream));
  }
  r.synchronize();
  for (int rank = 0; rank < r.ranks; ++rank) {
    const auto begin = gathered.begin() + rank * static_cast<std::ptrdiff_t>(count);
    const std::vector<T> part(begin, begin + static_cast<std::ptrdiff_t>(count));
    EXPECT_EQ(numbers(part),
              numbers(values<T>(rank, static_cast<std::size_t>(rank) * count, count)));
    EXPECT_EQ(numbers(sent[static_cast<std::size_t>(rank)]), numbers(values<T>(rank, 3, count)));
  }
}

TEST_F(RcclStandIn, CollectivesOfEveryType) {
  for (const int ranks : {2, 3, 4})
    in_processes(ranks, [](Rank& r) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{99}}) {
        check_reductions<double>(r, count);
        check_reductions<float>(r, count);
        check_reductions<bf16>(r, count);
        check_reductions<f16>(r, count);
        check_reductions<std::int64_t>(r, count);
        check_reductions<std::int32_t>(r, count);
        check_reductions<std::uint8_t>(r, count);
        check_copies<std::uint8_t>(r, count);
        check_copies<bf16>(r, count);
      }
      check_reductions<double>(r, 20001);  // more than a slot has
      check_copies<double>(r, 20001);
      EXPECT_EQ(r.error(), Result::Success);
      r.check(r.nccl.comm_destroy(r.comm));
    });
}

TEST_F(RcclStandIn, SumsAreInTheOrderOfTheRanks) {
  in_processes(3, [](Rank& r) {
    const std::vector<float> parts = {1e8f, 3.0f, -1e8f};
    float x = parts[static_cast<std::size_t>(r.rank)];
    r.check(r.nccl.all_reduce(&x, &x, 1, ElementType::F32, Reduction::Sum, r.comm, r.stream));
    r.synchronize();
    volatile float expected = parts[0] + parts[1];
    EXPECT_EQ(x, expected + parts[2]);
  });
}

// An all-to-all of uneven messages, also to itself, larger than a mailbox; two between each pair.
TEST_F(RcclStandIn, GroupedMessagesDoNotWaitForEachOther) {
  in_processes(3, [](Rank& r) {
    const auto count = [](int from, int to) {
      return static_cast<std::size_t>(1 + 10000 * from + 7 * to);
    };
    std::vector<std::vector<std::int32_t>> out, in;
    r.check(r.nccl.group_start());
    for (const int second : {0, 1})
      for (int peer = 0; peer < r.ranks; ++peer) {
        out.emplace_back(count(r.rank, peer), 100 * second + 10 * r.rank + peer);
        in.emplace_back(count(peer, r.rank));
        r.check(r.nccl.send(out.back().data(), out.back().size(), ElementType::I32, peer, r.comm,
                            r.stream));
        r.check(r.nccl.recv(in.back().data(), in.back().size(), ElementType::I32, peer, r.comm,
                            r.stream));
      }
    r.check(r.nccl.group_end());
    r.synchronize();
    for (const int second : {0, 1})
      for (int peer = 0; peer < r.ranks; ++peer)
        EXPECT_THAT(in[static_cast<std::size_t>(second * r.ranks + peer)],
                    testing::Each(100 * second + 10 * peer + r.rank));
  });
}

// As pipelines connect: a communicator and a stream for each direction between two ranks.
TEST_F(RcclStandIn, GroupedCommunicatorsConnectInAnyOrder) {
  in_processes(2, [](Rank& r) {
    std::vector<UniqueId> ids(4);  // two of each rank
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
      r.check(r.nccl.get_unique_id(&ids[static_cast<std::size_t>(r.rank) * 2 + i]));
    r.check(r.nccl.all_gather(&ids[static_cast<std::size_t>(r.rank) * 2], ids.data(),
                              2 * sizeof(UniqueId), ElementType::U8, r.comm, r.stream));
    r.synchronize();
    std::vector<Comm> comms(4);
    std::vector<int> data = {10, 11, 12, 13};
    const auto in_order = [&](const std::function<void(std::size_t)>& f) {
      r.check(r.nccl.group_start());
      for (std::size_t i = 0; i < 4; ++i) f(r.rank == 0 ? i : 3 - i);
      r.check(r.nccl.group_end());
    };
    in_order([&](std::size_t i) { r.check(r.nccl.comm_init_rank(&comms[i], 2, ids[i], r.rank)); });
    in_order([&](std::size_t i) {
      const gpu::Stream stream = stream_number(10 + i);
      if ((i % 2 == 0) == (r.rank == 0))
        return r.check(r.nccl.send(&data[i], 1, ElementType::I32, 1 - r.rank, comms[i], stream));
      data[i] = 0;
      r.check(r.nccl.recv(&data[i], 1, ElementType::I32, 1 - r.rank, comms[i], stream));
    });
    for (std::size_t i = 0; i < 4; ++i) r.synchronize(stream_number(10 + i));
    EXPECT_THAT(data, testing::ElementsAre(10, 11, 12, 13));
  });
}

TEST_F(RcclStandIn, Splits) {
  in_processes(4, [](Rank& r) {
    Comm none = r.comm, half = nullptr;
    r.check(r.nccl.comm_split(r.comm, r.rank == 3 ? nccl::kNoColor : 0, r.rank, &none, nullptr));
    EXPECT_EQ(none == nullptr, r.rank == 3);
    r.check(r.nccl.comm_split(r.comm, r.rank % 2, -r.rank, &half, nullptr));
    int rank = -1, ranks = 0;
    r.check(r.nccl.comm_user_rank(half, &rank));
    r.check(r.nccl.comm_count(half, &ranks));
    EXPECT_EQ(rank, r.rank < 2 ? 1 : 0);
    EXPECT_EQ(ranks, 2);
    std::int64_t x = r.rank;
    r.check(r.nccl.all_reduce(&x, &x, 1, ElementType::I64, Reduction::Sum, half, r.stream));
    r.synchronize();
    EXPECT_EQ(x, r.rank % 2 == 0 ? 2 : 4);
  });
}

TEST_F(RcclStandIn, RegistersMemory) {
  in_processes(1, [](Rank& r) {
    void* handle = nullptr;
    r.check(r.nccl.comm_register(r.comm, &handle, sizeof handle, &handle));
    r.check(r.nccl.comm_deregister(r.comm, handle));
    EXPECT_NE(r.nccl.comm_deregister(r.comm, handle), Result::Success);
  });
}

// Rank 2 makes no call. Rank 0 gives up, which also ends the wait of rank 1.
TEST_F(RcclStandIn, AnAbortWakesWaitingRanks) {
  in_processes(3, [](Rank& r) {
    if (r.rank == 2) return;
    std::int32_t x = 1, y = 1;
    r.check(r.nccl.all_reduce(&x, &x, 1, ElementType::I32, Reduction::Sum, r.comm, r.stream));
    const gpu::Stream other = stream_number(2);
    r.check(r.nccl.recv(&y, 1, ElementType::I32, 2, r.comm, other));
    EXPECT_EQ(r.error(), Result::Success);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (r.rank == 0) r.check(r.nccl.comm_abort(r.comm));
    r.synchronize();
    r.synchronize(other);
    if (r.rank == 0) return;
    EXPECT_EQ(r.error(), kRemoteError);
    EXPECT_EQ(r.nccl.all_reduce(&x, &x, 1, ElementType::I32, Reduction::Sum, r.comm, r.stream),
              kRemoteError);
    r.check(r.nccl.comm_abort(r.comm));
  });
}

TEST_F(RcclStandIn, DifferentCallsAreAnError) {
  in_processes(2, [](Rank& r) {
    std::vector<float> x(10);
    const std::size_t count = r.rank == 0 ? 9 : 10;
    r.check(r.nccl.all_reduce(x.data(), x.data(), count, ElementType::F32, Reduction::Sum, r.comm,
                              r.stream));
    r.synchronize();
    EXPECT_THAT(r.error(), testing::AnyOf(kInvalidUsage, kRemoteError));
  });
}

TEST_F(RcclStandIn, WaitsForALimitedTime) {
  setenv("KINTSUGI_FAKE_RCCL_TIMEOUT_S", "0.1", 1);
  in_processes(2, [](Rank& r) {
    if (r.rank == 1) return;
    float x = 1;
    r.check(r.nccl.all_reduce(&x, &x, 1, ElementType::F32, Reduction::Sum, r.comm, r.stream));
    r.synchronize();
    EXPECT_EQ(r.error(), kSystemError);
    EXPECT_STREQ(r.nccl.get_last_error(nullptr), "a rank did not come in time");
  });
  unsetenv("KINTSUGI_FAKE_RCCL_TIMEOUT_S");
}

}  // namespace
}  // namespace kintsugi
