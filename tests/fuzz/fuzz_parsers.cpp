// Fuzzes every parser of user files with damaged files. A parser must read a file or refuse it with
// a UserError. Anything else is a finding: another exception, a crash, a hang, unbounded memory.
// Each parser runs in its own process, which this process monitors.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "support/file_parsers.h"

// No input is larger than a megabyte. Read by the address sanitizer.
extern "C" const char* __asan_default_options() {
  return "hard_rss_limit_mb=3000:max_allocation_size_mb=1000:detect_leaks=1";
}

namespace kintsugi {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kInputTimeout_s = 30;

struct Settings {
  double seconds = 0;        // for each parser; 0: use `inputs`
  std::uint64_t inputs = 0;  // for each parser; 0: use `seconds`
  std::uint64_t seed = 0, from = 0;
};

// Shared memory between the process of a parser and the monitoring process.
struct Progress {
  std::atomic<std::uint64_t> input{0}, accepted{0}, refused{0}, findings{0};
};

void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit{std::size_t{4} << 30, std::size_t{4} << 30};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

std::string command_for(const FileParser& parser, const Settings& settings, std::uint64_t input) {
  return fmt::format("kintsugi_fuzz_parsers --only {} --seed {} --from {} --inputs 1", parser.name,
                     settings.seed, input);
}

void read_inputs(const FileParser& parser, const Settings& settings, Clock::time_point end,
                 Progress& progress) {
  limit_memory();
  const ParserFuzz fuzz(parser, settings.seed);
  FuzzCounts counts;
  for (std::uint64_t i = progress.input;
       settings.inputs == 0 || i < settings.from + settings.inputs; ++i) {
    if (settings.inputs == 0 && Clock::now() >= end) break;
    progress.input = i;
    fuzz.write(i);
    if (const std::string finding = fuzz.read(counts); !finding.empty()) {
      fmt::print("FOUND in {}: {}\n  {}\n", parser.name, finding.substr(0, 400),
                 command_for(parser, settings, i));
      std::fflush(stdout);
      ++progress.findings;
    }
    progress.accepted = counts.accepted;
    progress.refused = counts.refused;
  }
}

// Waits until the process ends or hangs. Returns the reason, or "" on success.
std::string watch(pid_t process, const Progress& progress) {
  std::uint64_t input = progress.input;
  Clock::time_point since = Clock::now();
  for (;;) {
    int status = 0;
    if (waitpid(process, &status, WNOHANG) == process) {
      if (WIFSIGNALED(status)) return fmt::format("ended by signal {}", WTERMSIG(status));
      return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit code {}", WEXITSTATUS(status));
    }
    if (progress.input != input) input = progress.input, since = Clock::now();
    if (Clock::now() - since > std::chrono::seconds(kInputTimeout_s)) {
      kill(process, SIGABRT);
      waitpid(process, &status, 0);
      return fmt::format("one input takes more than {} s", kInputTimeout_s);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Returns the number of findings. After a crash, a new process continues with the next input.
std::uint64_t fuzz(const FileParser& parser, const Settings& settings) {
  void* const memory =
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  Progress& progress = *new (memory) Progress;
  progress.input = settings.from;
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(settings.seconds));
  std::uint64_t accepted = 0, refused = 0, crashes = 0;
  for (;;) {
    std::fflush(stdout);
    const pid_t process = fork();
    if (process == 0) {
      read_inputs(parser, settings, end, progress);
      std::exit(0);
    }
    const std::string why = watch(process, progress);
    accepted += progress.accepted.exchange(0);
    refused += progress.refused.exchange(0);
    if (why.empty()) break;
    ++crashes;
    fmt::print("FOUND in {}: {}\n  {}\n", parser.name, why,
               command_for(parser, settings, progress.input));
    if (crashes >= 10) break;
    ++progress.input;
  }
  const std::chrono::duration<double> spent = Clock::now() - start;
  const std::uint64_t findings = crashes + progress.findings;
  fmt::print("{:18} {:8} inputs in {:4.0f} s: {:7} accepted, {:7} refused, {} findings\n",
             parser.name, accepted + refused + findings, spent.count(), accepted, refused,
             findings);
  munmap(memory, sizeof(Progress));
  return findings;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  CLI::App app("Reads damaged files with every parser of user files.");
  kintsugi::Settings settings{.seed = std::random_device{}()};
  std::vector<std::string> only;
  std::string keep;
  app.add_option("--seconds", settings.seconds, "time for each parser");
  app.add_option("--inputs", settings.inputs,
                 "number of inputs for each parser, instead of a time");
  app.add_option("--seed", settings.seed, "random seed");
  app.add_option("--from", settings.from, "number of the first input");
  app.add_option("--only", only, "run only these parsers");
  app.add_option("--keep", keep, "copy the first input to this directory, and read nothing");
  CLI11_PARSE(app, argc, argv);
  if (settings.seconds <= 0 && settings.inputs == 0) settings.seconds = 60;
  const std::vector<kintsugi::FileParser> parsers = kintsugi::file_parsers();
  fmt::print("seed {}\n", settings.seed);
  std::uint64_t findings = 0, tried = 0;
  for (const kintsugi::FileParser& parser : parsers) {
    if (!only.empty() && std::find(only.begin(), only.end(), parser.name) == only.end()) continue;
    ++tried;
    if (!keep.empty()) {
      const kintsugi::ParserFuzz fuzz(parser, settings.seed);
      fuzz.write(settings.from);
      std::filesystem::create_directories(keep);
      std::filesystem::copy(fuzz.directory(), std::filesystem::path(keep) / parser.name,
                            std::filesystem::copy_options::recursive |
                                std::filesystem::copy_options::overwrite_existing);
      continue;
    }
    findings += kintsugi::fuzz(parser, settings);
  }
  if (tried == 0 || tried < only.size()) {
    std::vector<std::string> names;
    for (const auto& parser : parsers) names.push_back(parser.name);
    fmt::print(stderr, "--only takes {}\n", fmt::join(names, ", "));
    return 2;
  }
  fmt::print("{} parsers, {} findings\n", tried, findings);
  return findings == 0 ? 0 : 1;
}
