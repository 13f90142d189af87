// The emulator of kernels: small kernels, right and wrong, as the real ones are written.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "emulator/test_support.h"

namespace kintsugi::emulator {
namespace {

void with_every_order(const std::function<void()>& test) {
  for (const char* order : {"forward", "reverse", "1", "2"}) {
    SCOPED_TRACE(order);
    ::setenv("KINTSUGI_EMULATOR_ORDER", order, 1);
    test();
  }
  ::unsetenv("KINTSUGI_EMULATOR_ORDER");
}

// ---- right kernels
template <class A>
__device__ A team_sum(A x) {
  for (int offset = kTeam / 2; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
  return x;
}
template <class A>
__device__ A block_sum(A x, A* shared) {
  const int lane = threadIdx.x % 32, team = threadIdx.x / 32;
  x = team_sum(x);
  __syncthreads();  // shared may still be read by a previous call
  if (lane == 0) shared[team] = x;
  __syncthreads();
  return team_sum(lane < static_cast<int>(blockDim.x / 32) ? shared[lane] : A(0));
}
__global__ void __launch_bounds__(256) sum_kernel(double* to, const double* x, int n) {
  SHARED(double[32], shared);
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  sum = block_sum(sum, shared);
  const double again = block_sum(sum, shared);
  if (threadIdx.x == 0) to[blockIdx.x] = sum + again;
}

TEST(Emulator, SumsOverBlocks) {
  with_every_order([] {
    constexpr int kBlocks = 7, kLength = 1000, kThreads = 256;
    Buffer<double> x(kBlocks * kLength), sums(kBlocks);
    std::iota(x.data(), x.data() + kBlocks * kLength, 0.0);
    run(grid_of(kBlocks, kThreads), [&] { sum_kernel(sums.data(), x.data(), kLength); });
    for (int i = 0; i < kBlocks; ++i) {
      const double sum = kLength * (i * kLength + (kLength - 1) / 2.0);
      EXPECT_EQ(sums[i], sum * (1 + kThreads));
    }
  });
}

__global__ void scan_kernel(int* to, const int* x) {
  SHARED(int[32], teams);
  const int lane = threadIdx.x % 32, team = threadIdx.x / 32;
  int sum = x[threadIdx.x];
  for (int offset = 1; offset < 32; offset *= 2) {
    const int left = shuffle_up(sum, offset);
    if (lane >= offset) sum += left;
  }
  if (lane == 31) teams[team] = sum;
  __syncthreads();
  for (int i = 0; i < team; ++i) sum += teams[i];
  to[threadIdx.x] = sum;
}

TEST(Emulator, ScansWithShuffles) {
  with_every_order([] {
    Buffer<int> x(512, 3), sums(512);
    run(grid_of(1, 512), [&] { scan_kernel(sums.data(), x.data()); });
    for (int i = 0; i < 512; ++i) EXPECT_EQ(sums[i], 3 * (i + 1));
  });
}

TEST(Emulator, GivesCoordinates) {
  constexpr dim3 kBlocks(2, 3, 4), kThreads(5, 3, 2);
  Buffer<int> visits(2 * 3 * 4 * 5 * 3 * 2);
  run({.blocks = {kBlocks.x, kBlocks.y, kBlocks.z},
       .threads = {kThreads.x, kThreads.y, kThreads.z}},
      [&] {
        const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        ++visits[block * blockDim.x * blockDim.y * blockDim.z + thread];
      });
  for (int i = 0; i < 2 * 3 * 4 * 5 * 3 * 2; ++i) EXPECT_EQ(visits[i], 1);
}

TEST(Emulator, CountsWithAtomics) {
  Buffer<int> counts(2);
  Buffer<unsigned> largest(1);
  run(grid_of(20, 96), [&] {
    SHARED(int, of_block);
    if (threadIdx.x == 0) of_block = 0;
    __syncthreads();
    atomicAdd(&of_block, 1);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&counts[0], of_block);
    atomicMax(&largest[0], blockIdx.x * blockDim.x + threadIdx.x);
  });
  EXPECT_EQ(counts[0], 20 * 96);
  EXPECT_EQ(largest[0], 20u * 96 - 1);
}

TEST(Emulator, SharedMemoryBeginsAsNaN) {
  Buffer<float> seen(8);
  Buffer<int> dynamic(8);
  run(grid_of(4, 2, 12), [&] {
    SHARED(float, value);
    auto* words = static_cast<int*>(dynamic_shared());
    if (threadIdx.x == 0) seen[blockIdx.x] = value, dynamic[blockIdx.x] = words[2];
    __syncthreads();
    if (threadIdx.x == 0) value = 1, words[2] = 1;
  });
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(isnan(seen[i]) && dynamic[i] == -1);
}

// A declaration in a template is another variable for each type.
template <class T>
__device__ T* scratch() {
  SHARED(T[4], memory);
  return memory;
}
TEST(Emulator, EveryDeclarationHasItsOwnMemory) {
  run(grid_of(1, 1), [] {
    EXPECT_EQ(scratch<int>(), scratch<int>());
    EXPECT_NE(static_cast<void*>(scratch<int>()), static_cast<void*>(scratch<unsigned>()));
    SHARED(int, a);
    SHARED(int, b);
    EXPECT_NE(&a, &b);
  });
}

TEST(Emulator, LanesVoteAndMatch) {
  run(grid_of(1, kWave), [] {
    const unsigned lane = threadIdx.x;
    std::uint64_t thirds = 0;
    for (int i = 0; i < kWave; i += 3) thirds |= std::uint64_t{1} << i;
    EXPECT_EQ(ballot(lane % 3 == 0), thirds);
    const std::uint64_t cut = ballot(lane % 3 == 0, kTeam) >> (lane & 32u);
    EXPECT_EQ(static_cast<unsigned>(cut), static_cast<unsigned>(thirds >> (lane & 32u)));
    EXPECT_EQ(match_any(static_cast<int>(lane % 32) / 8), 0xffull << lane % 32 / 8 * 8);
    EXPECT_EQ(shuffle(static_cast<int>(lane), 3, 8), static_cast<int>(lane / 8 * 8 + 3));
    EXPECT_EQ(shuffle_xor(static_cast<double>(lane), 1), static_cast<double>(lane ^ 1u));
    const float4 all = shuffle(make_float4(0, 1, 2, static_cast<float>(lane % 32)), 5);
    EXPECT_EQ(all.w, 5.0f);
  });
}

// The two teams of a wave of 64 may take different branches.
TEST(Emulator, TeamsOfAWaveMayDiverge) {
  run(grid_of(1, 64), [] {
    if (threadIdx.x < 32) {
      EXPECT_EQ(team_sum(1), 32);
      sync_wave(kTeam);
    } else {
      EXPECT_EQ(static_cast<unsigned>(ballot(true, kTeam) >> (threadIdx.x & (kWave - 32u))), ~0u);
    }
  });
}

TEST(Emulator, ThreadsThatHaveReturnedAreNotWaitedFor) {
  with_every_order([] {
    Buffer<int> counts(1);
    run(grid_of(1, 100), [&] {
      if (threadIdx.x >= 40 && threadIdx.x < 80) return;
      __syncthreads();
      const int voters = __popcll(ballot(true, kTeam) >> (threadIdx.x & (kWave - 32u)) & ~0u);
      __syncthreads();
      if (threadIdx.x % 32 == 0 || threadIdx.x == 80) atomicAdd(&counts[0], voters);
    });
    EXPECT_EQ(counts[0], 32 + 8 + 16 + 4);
  });
}

TEST(Emulator, SeveralThreadsLaunchKernels) {
  std::vector<std::thread> hosts;
  for (int host = 0; host < 4; ++host)
    hosts.emplace_back([] {
      Buffer<double> x(3 * 100, 1.0), sums(3);
      for (int i = 0; i < 20; ++i) {
        run(grid_of(3, 64), [&] { sum_kernel(sums.data(), x.data(), 100); });
        EXPECT_EQ(sums[2], 100.0 * (1 + 64));
      }
    });
  for (std::thread& host : hosts) host.join();
}

TEST(Emulator, CopiesArriveWhenTheyAreWaitedFor) {
  Buffer<int4> from(32, make_int4(1, 2, 3, 4));
  run(grid_of(1, 32), [&] {
    SHARED(int4[3][32], to);
    const auto lane = threadIdx.x;
    copy_async(&to[0][lane], &from[lane], true);
    commit_copies();
    copy_async(&to[1][lane], &from[lane], true);
    copy_async(&to[2][lane], nullptr, false);
    commit_copies();
    EXPECT_EQ(to[0][lane].x, -1);
    wait_for_copies(1);
    EXPECT_EQ(to[0][lane].w, 4);
    EXPECT_EQ(to[1][lane].x, -1);
    wait_for_copies(0);
    EXPECT_EQ(to[1][lane].w, 4);
    EXPECT_EQ(to[2][lane].w, 0);
  });
}

// ---- wrong kernels
TEST(Emulator, FindsBarriersAtDifferentLines) {
  const std::string text = mistake_of(grid_of(1, 64), [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  });
  EXPECT_MISTAKE(text, "__syncthreads");
  EXPECT_MISTAKE(text, "emulator_test.cpp");
}

TEST(Emulator, FindsBarriersThatSomeLanesMiss) {
  EXPECT_MISTAKE(mistake_of(grid_of(2, 64),
                            [] {
                              if (threadIdx.x % 2 == 0) __syncthreads();
                              team_sum(1.0f);
                            }),
                 "wait for ever");
}

TEST(Emulator, FindsShufflesAtDifferentPlaces) {
  const std::string text = mistake_of(grid_of(1, 32), [] {
    const int x = threadIdx.x < 16 ? shuffle(1, 0) : shuffle(2, 0);
    EXPECT_GT(x, 0);
  });
  EXPECT_MISTAKE(text, "waits for it in shuffle at");
}

TEST(Emulator, ValuesOfReturnedLanesAreNaN) {
  Buffer<float> sums(32);
  run(grid_of(1, 32), [&] {
    if (threadIdx.x >= 24) return;
    sums[threadIdx.x] = team_sum(1.0f);
  });
  EXPECT_TRUE(isnan(sums[0]));
  run(grid_of(1, 20), [&] { sums[threadIdx.x] = shuffle_xor(1.0f, 16); });
  EXPECT_EQ(sums[0], 1.0f);
  EXPECT_TRUE(isnan(sums[4]));
}

// It is right only if a wave has 32 lanes.
TEST(Emulator, ShowsThatAWaveMayHave64Lanes) {
  Buffer<int> counts(64);
  run(grid_of(1, 64), [&] { counts[threadIdx.x] = __popcll(ballot(true)); });
  EXPECT_EQ(counts[0] == 32, kWave == 32);
}

TEST(Emulator, RefusesTooMuchSharedMemory) {
  const auto use = [] { static_cast<char*>(dynamic_shared())[0] = 1; };
  EXPECT_EQ(mistake_of(grid_of(1, 1, shared_limit()), use), "");
  EXPECT_MISTAKE(mistake_of(grid_of(1, 1, shared_limit() + 1), use), "bytes of shared memory");
  EXPECT_MISTAKE(mistake_of(grid_of(1, 1, shared_limit() - 100),
                            [] {
                              SHARED(int[26], more);
                              more[0] = 0;
                            }),
                 "bytes of shared memory");
}

TEST(Emulator, RefusesImpossibleGrids) {
  EXPECT_MISTAKE(mistake_of(grid_of(1, 1025), [] {}), "1025 threads");
  EXPECT_MISTAKE(mistake_of(grid_of(0, 32), [] {}), "0 blocks");
}

TEST(Emulator, RethrowsWhatAKernelThrows) {
  with_every_order([] {
    struct Counter {
      explicit Counter(std::atomic<int>& count) : count(count) { ++count; }
      ~Counter() { --count; }
      std::atomic<int>& count;
    };
    std::atomic<int> alive{0};
    EXPECT_THROW(run(grid_of(5, 128),
                     [&] {
                       const Counter counter(alive);
                       __syncthreads();
                       if (threadIdx.x == 77) throw std::out_of_range("77");
                       __syncthreads();
                     }),
                 std::out_of_range);
    EXPECT_EQ(alive, 0);  // the other threads have ended, too
  });
  run(grid_of(1, 64), [] { EXPECT_EQ(team_sum(1), 32); });  // and the next launch works
}

TEST(Emulator, FindsAccessesBeyondSharedMemory) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [](int index) {
    Buffer<int> to(64);
    run(grid_of(1, 64, 40), [&] {
      SHARED(int[64], x);
      x[threadIdx.x] = 1;
      auto* words = static_cast<int*>(dynamic_shared());
      __syncthreads();
      to[threadIdx.x] = index < 0 ? words[threadIdx.x] : x[threadIdx.x + index];
    });
  };
  read(0);
  EXPECT_DEATH(read(1), "use-after-poison");
  EXPECT_DEATH(read(-1), "use-after-poison");
#else
  GTEST_SKIP() << "needs the address sanitizer";
#endif
}

// ---- races
class Races : public testing::Test {
 protected:
  void SetUp() override {
    if (!race_check::active()) GTEST_SKIP() << "needs -fsanitize=thread";
  }
};

__device__ void reverse(int* to, const int* from, bool barrier) {
  SHARED(int[64], x);
  x[threadIdx.x] = from[threadIdx.x];
  if (barrier) __syncthreads();
  to[threadIdx.x] = x[63 - threadIdx.x];
}

TEST_F(Races, AMissingBarrier) {
  with_every_order([] {
    Buffer<int> from(64), to(64);
    EXPECT_EQ(mistake_of(grid_of(1, 64), [&] { reverse(to.data(), from.data(), true); }), "");
    const std::string text =
        mistake_of(grid_of(1, 64), [&] { reverse(to.data(), from.data(), false); });
    EXPECT_MISTAKE(text, "of the shared variable declared at");
    EXPECT_MISTAKE(text, "without a barrier");
  });
}

TEST_F(Races, AMissingBarrierBeforeTheNextWrite) {
  Buffer<int> to(64);
  const auto sum = [&](bool barrier) {
    return mistake_of(grid_of(1, 64), [&, barrier] {
      SHARED(int, x);
      for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 5) x = i;
        __syncthreads();
        to[threadIdx.x] += x;
        if (barrier) __syncthreads();
      }
    });
  };
  EXPECT_EQ(sum(true), "");
  EXPECT_MISTAKE(sum(false), "race");
}

TEST_F(Races, BlocksThatWriteTheSameMemory) {
  Buffer<int> to(4);
  EXPECT_MISTAKE(mistake_of(grid_of(2, 4), [&] { to[threadIdx.x] = 1; }), "of a buffer");
  EXPECT_EQ(mistake_of(grid_of(1, 4), [&] { to[threadIdx.x] = 1; }), "");  // the next launch
  EXPECT_EQ(mistake_of(grid_of(4, 4), [&] { atomicAdd(&to[threadIdx.x], 1); }), "");
}

TEST_F(Races, AtomicsAndPlainAccesses) {
  const auto count = [](int missing) {
    return mistake_of(grid_of(1, 64), [missing] {
      SHARED(int, counter);
      if (threadIdx.x == 0) counter = 0;
      if (missing != 0) __syncthreads();
      atomicAdd(&counter, 1);
      if (missing != 1) __syncthreads();
      EXPECT_LE(counter, 64);
    });
  };
  EXPECT_EQ(count(-1), "");
  EXPECT_MISTAKE(count(0), "atomically");
  EXPECT_MISTAKE(count(1), "atomically");
}

TEST_F(Races, LanesThatDoNotSynchronize) {
  const auto swap = [](bool sync, int distance) {
    return mistake_of(grid_of(1, 64), [=] {
      SHARED(int[64], x);
      x[threadIdx.x] = 1;
      if (sync) sync_wave();
      EXPECT_GE(x[threadIdx.x ^ static_cast<unsigned>(distance)], -1);
    });
  };
  EXPECT_EQ(swap(true, 1), "");
  EXPECT_MISTAKE(swap(false, 1), "race");
  EXPECT_EQ(swap(true, 32).empty(), kWave == 64);  // the neighbouring warp or the same wave
}

TEST_F(Races, CopiesThatOthersReadWithoutABarrier) {
  Buffer<int4> from(32);
  const auto copy = [&](bool barrier) {
    return mistake_of(grid_of(1, 32), [&, barrier] {
      SHARED(int4[32], to);
      copy_async(&to[threadIdx.x], &from[threadIdx.x], true);
      commit_copies();
      if (!barrier) __syncthreads();
      wait_for_copies(0);
      if (barrier) __syncthreads();
      EXPECT_LE(to[threadIdx.x ^ 1u].x, 0);
    });
  };
  EXPECT_EQ(copy(true), "");
  EXPECT_MISTAKE(copy(false), "race");
}

}  // namespace
}  // namespace kintsugi::emulator
