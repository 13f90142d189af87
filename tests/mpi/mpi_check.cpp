// Run under mpirun by ctest: mpi_check <what>.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "comm/mpi/mpi_world.h"
#include "support/collective_cases.h"

namespace kintsugi {
namespace {

void collectives(World& world) {
  check_collectives(*world.split("world", 0, world.rank()));
  check_collectives(*world.split("pairs", world.rank() / 2, -world.rank()));
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
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
      const auto begin = Clock::now();
      for (int i = 0; i < repeats; ++i) call();
      if (world.rank() == 0)
        std::printf("%-14s %8ld x %d fp32: %.1f us\n", what, static_cast<long>(n), group->size(),
                    seconds_since(begin) / repeats * 1e6);
      group->barrier();
    };
    time("all_reduce", [&] { group->wait(group->all_reduce(y)); });
    time("reduce_scatter", [&] { group->wait(group->reduce_scatter(y, x)); });
    time("all_gather", [&] { group->wait(group->all_gather(x, y)); });
    time("broadcast", [&] { group->wait(group->broadcast(y, 0)); });
  }
  const CommunicationTimes times = group->times();
  if (world.rank() == 0)
    std::printf("busy %.3f s, waited %.3f s, %ld bytes sent, %ld of %ld calls finished\n",
                times.busy_s, times.waited_s, static_cast<long>(times.bytes),
                static_cast<long>(times.finished), static_cast<long>(times.started));
}

int check(const std::string& what) {
  try {
    const auto world = make_mpi_world();
    if (what == "collectives")
      collectives(*world);
    else if (what == "bench")
      bench(*world);
    else
      failure("nothing is called {}", what);
    if (world->rank() == 0) std::printf("%s: passed on %d ranks\n", what.c_str(), world->size());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) { return kintsugi::check(argc > 1 ? argv[1] : ""); }
