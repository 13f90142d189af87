// What metering costs: on the step path of a rank, and in the thread that reads the meters.
//   build/bench_metering [watts of the node, if it has no meters]
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/communicator.h"
#include "train/job_energy.h"

using namespace kintsugi;

namespace {

double seconds_of(int times, const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
}

}  // namespace

int main(int argc, char** argv) {
  const MeterSearch search{.node_w = argc > 1 ? std::atof(argv[1]) : 0};
  FoundMeters found = find_meters(search);
  std::string gpu;  // the PCI address of the first one
  for (const auto& meter : found.meters) {
    const std::string& detail = meter->identity().detail;  // "NVIDIA H200 0000:1b:00.0"
    if (meter->identity().source == "nvml" && gpu.empty())
      gpu = detail.substr(detail.rfind(' ') + 1);
    const double read_s = seconds_of(50, [&] { meter->read(); });
    fmt::print("{} {}: {:.1f} us per reading, in its own thread\n", meter->identity().source,
               meter->identity().scope, 1e6 * read_s);
  }
  LocalCommunicator hosts("energy");
  JobEnergy energy(hosts, {.search = search, .sample_s = 0.5, .node = "here", .gpu = gpu});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const double step_s = seconds_of(100000, [&] {  // as Trainer::train_step() does
    const EnergySpan span(&energy, RunPhase::Steps);
    energy.own();
  });
  fmt::print("step path: {:.2f} us per step, {:.6f} % of a step of 100 ms\n", 1e6 * step_s,
             100 * step_s / 0.1);
}
