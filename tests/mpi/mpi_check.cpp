// Run under mpirun by ctest (cmake/mpi_tests.cmake): mpi_check <what>.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "comm/checked_communicator.h"
#include "comm/grid.h"
#include "comm/lifeline.h"
#include "comm/mpi/mpi_world.h"
#include "support/collective_cases.h"

namespace kintsugi {
namespace {

void collectives(World& world) {
  check_collectives(*world.split("world", 0, world.rank()));
  check_collectives(*world.split("pairs", world.rank() / 2, -world.rank()));
}

// The last rank does something else than the others, who wait for it in an all_reduce.
void mismatch(World& plain) {
  CheckedWorld world(plain);
  const auto group = world.split("dp", 0, world.rank());
  check_collectives(*group);
  std::vector<float> x(12);
  const Tensor all(x.data(), DType::F32, {12});
  const bool odd = world.rank() == world.size() - 1;
  group->wait(odd ? group->broadcast(all, 0) : group->all_reduce(all));
}

// Every group of a grid at work at once; each element of the sum is its group's size.
void grid(World& world) {
  const Grid grid{
      .tp = 2, .cp = 1, .dp = 2, .pp = world.size() / 4, .shard_group = 1, .kv_copies = 2};
  const Groups groups = make_groups(world, grid);
  std::vector<Communicator*> all = {groups.world.get(),  groups.host_tp.get(), groups.tp.get(),
                                    groups.cp.get(),     groups.pp.get(),      groups.kv.get(),
                                    groups.tied.get(),   groups.shard.get(),   groups.copy.get(),
                                    groups.replica.get()};
  // A call may meet its peers' calls to other groups first: nobody waits for that.
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

// Calls finish behind the caller's back, before it waits; a hang if they do not. The bytes are
// those of the formulas.
void behind(World& world) {
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
    failure("waited {} s of {} for what was done", times.waited_s, times.busy_s);
}

// The culprit ends while the others wait for it in a collective that it never calls.
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
  std::printf("rank %d got through a barrier that rank %d never reached\n", world.rank(), culprit);
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// By hand only, 2 GiB per rank: counts beyond an int.
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
  if (world.rank() < 2 && (x.back() != 77 || x.front() != 77)) failure("a message was cut");
  std::fill(x.begin(), x.end(), static_cast<std::uint8_t>(9 + world.rank()));
  group->wait(group->broadcast(all, 1));
  expect(10, "broadcast");
}

// Not a test: what a call costs here.
void bench(World& world) {
  const auto group = world.split("world", 0, world.rank());
  for (const std::int64_t n : {1, 1000, 100000, 4000000}) {
    std::vector<float> full(n * group->size()), shard(n);
    const Tensor x(full.data(), DType::F32, {n * group->size()}), y(shard.data(), DType::F32, {n});
    const int repeats = n > 100000 ? 3 : 30;
    group->barrier();
    const auto time = [&](const char* what, const auto& call) {
      const auto started = Clock::now();
      for (int i = 0; i < repeats; ++i) call();
      if (world.rank() == 0)
        std::printf("%-14s %8ld x %d fp32: %.1f us\n", what, static_cast<long>(n), group->size(),
                    seconds_since(started) / repeats * 1e6);
      group->barrier();
    };
    time("all_reduce", [&] { group->wait(group->all_reduce(y)); });
    time("reduce_scatter", [&] { group->wait(group->reduce_scatter(y, x)); });
    time("all_gather", [&] { group->wait(group->all_gather(x, y)); });
    time("broadcast", [&] { group->wait(group->broadcast(y, 0)); });
  }
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
  if (what == "behind") return behind(world);
  if (what == "mismatch") return mismatch(world);
  if (what == "large") return large(world);
  if (what == "bench") return bench(world);
  const int culprit = what.ends_with("-first") ? 0 : world.size() - 1;
  die(world, what.substr(0, what.find('-')), culprit);
}

// As the command line does it: rank 0 reports, every rank ends.
int check(const std::string& what) {
  try {
    const auto world = make_mpi_world();
    Lifeline lifeline(*world, {.on_message =
                                   [](int rank, const std::string& text) {
                                     std::printf("rank %d says: %s\n", rank, text.c_str());
                                   },
                               .on_failure =
                                   [](const RankFailure& failure) {
                                     std::printf("REPORT: %s\n", failure.text.c_str());
                                     std::fflush(stdout);
                                   },
                               .end =
                                   [](const RankFailure& failure) {
                                     if (failure.rank == 0)
                                       std::fprintf(stderr, "END: %s\n", failure.text.c_str());
                                     _exit(failure.exit_code);
                                   }});
    try {
      run(*world, what);
      lifeline.say("done");
      lifeline.goodbye();
    } catch (const UserError& error) {
      lifeline.fail(error.what(), 2);
      throw;
    } catch (const std::exception& error) {
      lifeline.fail(error.what(), 1);
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
  // mpirun sends SIGTERM when a rank dies, and SIGKILL a second later. A training run handles the
  // first, which leaves it that second to report.
  signal(SIGTERM, SIG_IGN);
  return kintsugi::check(argc > 1 ? argv[1] : "");
}
