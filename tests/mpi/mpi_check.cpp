// Run under mpirun by ctest (cmake/mpi_tests.cmake): mpi_check <what>.
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "comm/checked_communicator.h"
#include "comm/exchange.h"
#include "comm/grid.h"
#include "comm/lifeline.h"
#include "comm/mpi/mpi_world.h"
#include "core/statistics.h"
#include "support/collective_cases.h"

// Counts the MPI calls of the program through MPI's profiling interface: messages and collectives.
namespace {
std::atomic<int> messages_called, collectives_called;
}
extern "C" {
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  ++messages_called;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  ++collectives_called;
  return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}
int MPI_Iallgather(const void* from, int send_count, MPI_Datatype send_type, void* to,
                   int receive_count, MPI_Datatype receive_type, MPI_Comm comm,
                   MPI_Request* request) {
  ++collectives_called;
  return PMPI_Iallgather(from, send_count, send_type, to, receive_count, receive_type, comm,
                         request);
}
}

namespace kintsugi {
namespace {

// Rank r's addend of element i: the result depends on the order of summation.
float addend(int rank, int i) {
  return std::ldexp(1.0f + static_cast<float>((rank * 7919 + i * 104729) % 1000) / 1000,
                    (rank * 31 + i * 17) % 40 - 20) *
         ((rank + i) % 2 == 0 ? 1.0f : -1.0f);
}

// Checks sums of few and of many elements: bitwise in rank order, otherwise up to rounding.
void check_sums(Communicator& group, bool in_rank_order) {
  for (const int per_rank : {3, 20000}) {
    const int n = per_rank * group.size();
    std::vector<float> all(static_cast<std::size_t>(n)), full, shard(per_rank);
    for (int i = 0; i < n; ++i) all[i] = addend(group.rank(), i);
    full = all;
    group.wait(group.all_reduce(Tensor(all.data(), DType::F32, {n})));
    group.wait(group.reduce_scatter(Tensor(shard.data(), DType::F32, {per_rank}),
                                    Tensor(full.data(), DType::F32, {n})));
    for (int i = 0; i < n; ++i) {
      float sum = addend(0, i), largest = std::abs(sum);
      for (int r = 1; r < group.size(); ++r) {
        sum += addend(r, i);
        largest = std::max(largest, std::abs(addend(r, i)));
      }
      const float tolerance =
          in_rank_order ? 0 : largest * static_cast<float>(group.size()) * 0x1p-22f;
      const int own = i - group.rank() * per_rank;
      if (std::abs(all[i] - sum) > tolerance ||
          (own >= 0 && own < per_rank && std::abs(shard[own] - sum) > tolerance))
        failure("element {} of {}: the sum is {}, not {}", i, n, all[i], sum);
    }
  }
}

// The maximum is NaN if any rank has NaN.
void check_nan(Communicator& group) {
  std::vector<double> x(static_cast<std::size_t>(group.size()), 1.0);
  x[static_cast<std::size_t>(group.rank())] = std::numeric_limits<double>::quiet_NaN();
  group.wait(group.all_reduce(Tensor(x.data(), DType::F64, {group.size()}), ReduceOp::Max));
  for (const double value : x)
    if (!std::isnan(value)) failure("the maximum of NaN and 1 is {}", value);
}

void collectives(World& world) {
  for (const bool in_rank_order : {false, true}) {
    sum_in_rank_order(world, in_rank_order);
    const auto all = world.split("world", 0, world.rank());
    check_collectives(*all);
    check_sums(*all, in_rank_order);
    check_nan(*all);
    check_collectives(*world.split("pairs", world.rank() / 2, -world.rank()));
  }
}

// Control communication of all ranks uses one MPI collective and no messages of our own, so that it
// scales with MPI's tree algorithms.
void control(World& world) {
  for (const bool in_rank_order : {false, true}) {
    sum_in_rank_order(world, in_rank_order);
    const auto group = world.split("control", 0, world.rank());
    const auto expect_one = [&](const char* what, const auto& call) {
      group->barrier();
      messages_called = collectives_called = 0;
      call();
      if (messages_called != 0 || collectives_called != 1)
        failure("{} made {} messages and {} collectives", what, messages_called.load(),
                collectives_called.load());
    };
    std::vector<double> sums(3, 1.0);
    expect_one("the sums of a step",
               [&] { group->wait(group->all_reduce(Tensor(sums.data(), DType::F64, {3}))); });
    expect_one("work together", [&] { together(*group, [] {}); });
    expect_one("an agreement", [&] { check_agreement(*group, {{"run.seed", "1"}}); });
  }
}

// The last rank calls something else than the others, which wait in an all_reduce.
void mismatch(World& plain) {
  CheckedWorld world(plain);
  const auto group = world.split("dp", 0, world.rank());
  check_collectives(*group);
  std::vector<float> x(12);
  const Tensor all(x.data(), DType::F32, {12});
  const bool odd = world.rank() == world.size() - 1;
  group->wait(odd ? group->broadcast(all, 0) : group->all_reduce(all));
}

// All groups of a grid communicate at once; each element of a sum is the size of its group.
void grid(World& world) {
  const Grid grid{
      .tp = 2, .cp = 1, .dp = 2, .pp = world.size() / 4, .shard_group = 1, .kv_copies = 2};
  const Groups groups = make_groups(world, grid);
  std::vector<Communicator*> all;
  for (const GroupSpec& spec : group_specs()) all.push_back(&groups[spec.kind]);
  // The order of calls to different groups may differ between ranks.
  if (world.rank() % 2 == 1) std::reverse(all.begin(), all.end());
  std::vector<std::vector<float>> ones(all.size(), std::vector<float>(30000, 1.0f));
  std::vector<Communicator::Work> works;
  for (std::size_t i = 0; i < all.size(); ++i)
    works.push_back(all[i]->all_reduce(Tensor(ones[i].data(), DType::F32, {30000})));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i]->wait(works[i]);
    for (const float value : ones[i])
      if (value != static_cast<float>(all[i]->size()))
        failure("the sum of ones in group {} is {}", all[i]->name(), value);
  }
}

// Calls finish in the background, before the caller waits; otherwise this hangs. The bytes follow
// the ring formulas.
void overlap(World& world) {
  const auto group = world.split("dp", 0, world.rank());
  const std::int64_t size = group->size(), n = 10000 * size;
  std::vector<float> a(n, 1.0f), b(n * size, 1.0f), c(n);
  const auto first = group->all_reduce(Tensor(a.data(), DType::F32, {n}));
  const auto second = group->reduce_scatter(Tensor(c.data(), DType::F32, {n}),
                                            Tensor(b.data(), DType::F32, {n * size}));
  while (group->times().finished < 2) std::this_thread::yield();
  if (a[0] != static_cast<float>(size) || c[n - 1] != static_cast<float>(size))
    failure("finished, but the sums are {} and {}", a[0], c[n - 1]);
  group->wait(first);
  group->wait(second);
  const CommunicationTimes times = group->times();
  const std::int64_t bytes = 2 * 4 * n * (size - 1) / size + 4 * n * (size - 1);
  if (times.bytes != bytes || times.started != 2)
    failure("{} calls of {} bytes, not 2 of {}", times.started, times.bytes, bytes);
  if (times.waited_s > 0 || times.busy_s <= 0)
    failure("waited {} s of {} for calls that were done", times.waited_s, times.busy_s);
}

// The culprit dies while the others wait for it in a collective.
void die(World& world, const std::string& how, int culprit) {
  const auto group = world.split("dp", 0, world.rank());
  group->barrier();
  if (world.rank() == culprit) {
    if (how == "throw") failure("the disk is full");
    if (how == "user") user_error("batch.micro is odd");
    if (how == "abort") std::abort();
    if (how == "kill") kill(getpid(), SIGKILL);
    if (how == "exit") _exit(0);
  }
  group->barrier();
  std::printf("rank %d passed a barrier that rank %d never reached\n", world.rank(), culprit);
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Tensors that are processed in several blocks, in place and out of place.
void blocks(World& world) {
  const auto group = world.split("dp", 0, world.rank());
  const std::int64_t n = (std::int64_t{17} << 20) + 3, size = group->size();  // 68 MiB of fp32
  const auto value = [](std::int64_t rank, std::int64_t i) {
    return static_cast<float>(rank * 1000 + i % 977);
  };
  std::vector<float> full(n * size), shard(n);
  const Tensor all(full.data(), DType::F32, {n * size}), beside(shard.data(), DType::F32, {n}),
      inside = all.rows(world.rank() * n, n);
  const auto expect = [&](const std::vector<float>& x, std::int64_t i, float expected,
                          const char* what) {
    if (x[i] != expected) failure("{}: element {} is {}, not {}", what, i, x[i], expected);
  };
  for (const Tensor& own : {beside, inside}) {
    const auto* at = static_cast<const float*>(own.data());
    for (std::int64_t i = 0; i < n; ++i)
      static_cast<float*>(own.data())[i] = value(world.rank(), i);
    group->wait(group->all_gather(all, own));
    for (std::int64_t r = 0; r < size; ++r)
      for (const std::int64_t i : {std::int64_t{0}, n / 2, n - 1})
        expect(full, r * n + i, value(r, i), "all_gather");
    for (std::int64_t i = 0; i < n * size; ++i) full[i] = value(world.rank(), i);
    group->wait(group->reduce_scatter(own, all));
    for (std::int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (std::int64_t r = 0; r < size; ++r) sum += value(r, world.rank() * n + i);
      if (at[i] != sum) failure("reduce_scatter: element {} is {}, not {}", i, at[i], sum);
    }
  }
  for (std::int64_t i = 0; i < n * size; ++i) full[i] = value(world.rank(), i);
  group->wait(group->all_reduce(all));
  for (std::int64_t i = 0; i < n * size; ++i) {
    float sum = 0;
    for (std::int64_t r = 0; r < size; ++r) sum += value(r, i);
    expect(full, i, sum, "all_reduce");
  }
}

// Run manually, 2 GiB per rank: counts that exceed an int.
void large(World& world) {
  const auto group = world.split("world", 0, world.rank());
  const std::int64_t n = (std::int64_t{1} << 31) + 5;
  std::vector<std::uint8_t> x(n, static_cast<std::uint8_t>(world.rank() + 1));
  const Tensor all(x.data(), DType::U8, {n});
  const auto expect = [&](int value, const char* what) {
    for (const std::int64_t i : {std::int64_t{0}, n / 2, n - 6, n - 1})
      if (x[i] != value) failure("{}: element {} is {}, not {}", what, i, x[i], value);
  };
  group->wait(group->all_reduce(all));
  expect(group->size() * (group->size() + 1) / 2, "all_reduce");
  if (world.rank() == 0) x.back() = x.front() = 77;
  if (world.rank() == 0) group->wait(group->send(all, 1));
  if (world.rank() == 1) group->wait(group->receive(all, 0));
  if (world.rank() < 2 && (x.back() != 77 || x.front() != 77)) failure("a message was truncated");
  std::fill(x.begin(), x.end(), static_cast<std::uint8_t>(9 + world.rank()));
  group->wait(group->broadcast(all, 1));
  expect(10, "broadcast");
}

// A benchmark: times MPI's collectives and reductions in rank order, alternating, so that both run
// under the same load.
void bench(World& world) {
  sum_in_rank_order(world, true);
  const auto ordered = world.split("ordered", 0, world.rank());
  sum_in_rank_order(world, false);
  const auto group = world.split("world", 0, world.rank());
  for (const std::int64_t n : {3, 1000, 100000, 1000000}) {
    std::vector<float> full(n * group->size()), shard(n);
    const Tensor x(full.data(), DType::F32, {n * group->size()}), y(shard.data(), DType::F32, {n});
    const int repeats = n > 100000 ? 5 : 40;
    const auto time = [&](Communicator& by, const auto& call) {
      by.barrier();
      const auto started = Clock::now();
      call(by);
      return seconds_since(started) * 1e6;
    };
    const auto compare = [&](const char* what, const auto& call) {
      std::vector<double> mpi, in_rank_order;
      for (int i = 0; i < repeats; ++i) {
        mpi.push_back(time(*group, call));
        in_rank_order.push_back(time(*ordered, call));
      }
      if (world.rank() == 0)
        std::printf("%-14s %8ld x %d fp32: MPI %9.1f us, in rank order %9.1f us, ratio %.2f\n",
                    what, static_cast<long>(n), group->size(), median(mpi), median(in_rank_order),
                    median(mpi) / median(in_rank_order));
    };
    compare("all_reduce", [&](Communicator& by) { by.wait(by.all_reduce(y)); });
    compare("reduce_scatter", [&](Communicator& by) { by.wait(by.reduce_scatter(y, x)); });
  }
  // At start-up, the facts of a configuration are compared three times.
  Facts facts;
  for (int i = 0; i < 120; ++i) facts.emplace_back(fmt::format("section.key_{}", i), "a value");
  std::vector<double> comparisons;
  for (int i = 0; i < 40; ++i) {
    group->barrier();
    const auto started = Clock::now();
    check_agreement(*group, facts);
    comparisons.push_back(seconds_since(started) * 1e6);
  }
  if (world.rank() == 0)
    std::printf("comparing %zu facts of %d ranks: %.1f us\n", facts.size(), group->size(),
                median(comparisons));
  const std::clock_t begin = std::clock();
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  group->barrier();
  const CommunicationTimes times = group->times();
  if (world.rank() == world.size() - 1)
    std::printf("waiting a second for rank 0 took %.1f ms of processor time\n",
                1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  if (world.rank() == 0)
    std::printf("busy %.3f s, waited %.3f s, %ld bytes sent, %ld of %ld calls finished\n",
                times.busy_s, times.waited_s, static_cast<long>(times.bytes),
                static_cast<long>(times.finished), static_cast<long>(times.started));
}

void run(World& world, const std::string& what) {
  if (what == "collectives") return collectives(world);
  if (what == "grid") return grid(world);
  if (what == "overlap") return overlap(world);
  if (what == "control") return control(world);
  if (what == "mismatch") return mismatch(world);
  if (what == "blocks") return blocks(world);
  if (what == "large") return large(world);
  if (what == "bench") return bench(world);
  const int culprit = what.ends_with("-first") ? 0 : world.size() - 1;
  die(world, what.substr(0, what.find('-')), culprit);
}

// Like the command line: rank 0 reports, all ranks exit.
int check(const std::string& what) {
  try {
    const auto world = make_mpi_world();
    Lifeline lifeline(*world, {.on_message =
                                   [](int rank, const std::string& text) {
                                     std::printf("rank %d says: %s\n", rank, text.c_str());
                                   },
                               .on_failure =
                                   [](const RankFailure& failure, const auto&) {
                                     std::printf("REPORT: %s\n", failure.text.c_str());
                                     std::fflush(stdout);
                                   },
                               .end =
                                   [](const RankFailure& failure) {
                                     if (failure.rank() == 0)
                                       std::fprintf(stderr, "END: %s\n", failure.text.c_str());
                                     _exit(failure.exit_code());
                                   }});
    try {
      run(*world, what);
      lifeline.say("done");
      lifeline.goodbye();
    } catch (const std::exception& error) {
      lifeline.fail(failure_of(error, {world->rank()}));
      throw;
    }
    if (world->rank() == 0) std::printf("%s: passed on %d ranks\n", what.c_str(), world->size());
    return 0;
  } catch (const UserError&) {
    return 2;
  } catch (const std::exception& error) {
    return 1;
  }
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  // mpirun sends SIGTERM when a rank dies, and SIGKILL a second later. A training run handles
  // SIGTERM, so it has a second to report.
  signal(SIGTERM, SIG_IGN);
  return kintsugi::check(argc > 1 ? argv[1] : "");
}
