// Disturbs runs under mpirun and under a real Slurm on this machine. Every run must finish by
// itself, with the weights of an undisturbed run.
#include "support/fault_runs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <map>
#include <random>

#include "core/error.h"

namespace kintsugi {
namespace {

std::string seconds(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f} s", *value) : "-";
}

std::string name_of(Fault fault, bool slurm) {
  return fmt::format("{}: {}", slurm ? "Slurm" : "mpirun", to_string(fault));
}

int run_faults(int trials, std::uint64_t seed, const std::string& only) {
  const bool slurm = SlurmCluster::available(), root = geteuid() == 0;
  fmt::print("{} trials, seed {}{}{}\n", trials, seed,
             slurm ? "" : ", without Slurm: slurm-wlm and munge are not installed",
             root ? "" : ", without a full disk: only root can mount one");
  std::vector<std::pair<Fault, bool>> kinds;
  for (int i = 0; i < kFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (needs_root(fault) && !root) continue;
    if (!needs_slurm(fault)) kinds.emplace_back(fault, false);
    if (slurm) kinds.emplace_back(fault, true);
  }
  std::erase_if(kinds, [&](const auto& kind) {
    return name_of(kind.first, kind.second).find(only) == std::string::npos;
  });
  if (kinds.empty()) failure("no kind of fault has '{}' in its name", only);
  std::mt19937_64 random(seed);
  FaultRuns runs(random());
  struct Summary {
    int trials = 0;
    double slowest_detection_s = 0, slowest_restart_s = 0;
  };
  std::map<std::string, Summary> summaries;
  for (int number = 0; number < trials; ++number) {
    if (number % static_cast<int>(kinds.size()) == 0)
      std::shuffle(kinds.begin(), kinds.end(), random);  // every kind, in another order
    const auto [fault, on_slurm] = kinds[static_cast<std::size_t>(number) % kinds.size()];
    const FaultReport report = runs.trial(fault, on_slurm);
    const std::string name = name_of(fault, on_slurm);
    fmt::print(
        "{:>3}  {:<50} {:<28} {} attempts, noticed after {}, ended {}, first step {} later, {:.0f} "
        "s\n",
        number + 1, name, report.what, report.attempts, seconds(report.detected_s),
        seconds(report.ended_s), seconds(report.restarted_s), report.total_s);
    std::fflush(stdout);
    Summary& summary = summaries[name];
    ++summary.trials;
    summary.slowest_detection_s =
        std::max(summary.slowest_detection_s, report.detected_s.value_or(0));
    summary.slowest_restart_s = std::max(summary.slowest_restart_s, report.restarted_s.value_or(0));
  }
  fmt::print("\n{} trials, every run finished by itself with the weights of an undisturbed run:\n",
             trials);
  for (const auto& [name, summary] : summaries)
    fmt::print(
        "  {:<50} {:>3} trials, noticed after at most {:.1f} s, slowest restart {:.1f} "
        "s\n",
        name, summary.trials, summary.slowest_detection_s, summary.slowest_restart_s);
  return 0;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  CLI::App app{"Disturbs runs and compares the result with an undisturbed run."};
  int trials = 50;
  std::uint64_t seed = std::random_device{}();
  app.add_option("trials", trials, "Number of trials")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "Random seed; the exact times still vary");
  std::string only;
  app.add_option("--only", only, "Only faults with this text in their name, such as 'a node dies'");
  CLI11_PARSE(app, argc, argv);
  try {
    return kintsugi::run_faults(trials, seed, only);
  } catch (const std::exception& error) {
    fmt::print("FAILED (seed {}): {}\n", seed, error.what());
    return 1;
  }
}
