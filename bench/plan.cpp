// How long the planner takes per layout: bench_plan [model [machine [gpus [batch]]]].
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "plan/search/search.h"

int main(int argc, char** argv) {
  using namespace kintsugi;
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  PlanJob job{.model = load_preset(argument(1, "gpt-175b")), .length = 2048};
  job.batch = std::stoll(argument(4, "10240"));
  const Machine machine = load_machine(argument(2, "frontier"));
  const SearchLimits limits{.gpus = std::stoi(argument(3, "1024"))};
  for (const char* when : {"cold", "warm"}) {
    using Clock = std::chrono::steady_clock;
    static Planner planner(job, machine);  // what is traced once stays for the second round
    const auto start = Clock::now();
    const SearchResult result = search_layouts(planner, limits);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    fmt::print("{}: {} layouts, {} fit, {:.3f} s, {:.1f} us per layout\n", when, result.layouts,
               result.fitting, seconds, 1e6 * seconds / static_cast<double>(result.layouts));
  }
}
