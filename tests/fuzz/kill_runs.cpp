// Kills runs at random moments, including during saves and removals of old checkpoints, resumes
// them, and compares the final checkpoint byte for byte with that of an uninterrupted run. The same
// of data commands: kill_data.h.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>  // small_run.h needs it
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "kill_data.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/folder.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 30;

// When a process is killed.
enum class Moment { Any, Save, Removal };
const char* to_string(Moment moment) {
  return moment == Moment::Any ? "any moment" : moment == Moment::Save ? "a save" : "a removal";
}

class Process {
 public:
  Process(int ranks, const fs::path& config, const fs::path& output) : ranks_(ranks) {
    pid_ = fork();
    if (pid_ != 0) return;
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"})
      setenv(name, "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    const std::string number = std::to_string(ranks);
    if (ranks > 1)
      execlp("mpirun", "mpirun", "-np", number.c_str(), kintsugi_binary().c_str(), "train",
             config.c_str(), nullptr);
    else
      execl(kintsugi_binary().c_str(), "kintsugi", "train", config.c_str(), nullptr);
    _exit(127);
  }

  // Whether it has exited.
  bool ended() {
    if (status_ < 0 && waitpid(pid_, &status_, WNOHANG) == 0) status_ = -1;
    return status_ >= 0;
  }
  // Kills all ranks, or sometimes only one of several: then the others exit by themselves.
  void kill(std::mt19937_64& random) {
    std::vector<pid_t> ranks = {pid_};
    if (ranks_ > 1)  // wait for the ranks: they would survive if only the launcher were killed
      while ((ranks = children()).empty() && !ended()) continue;
    if (ended()) return;
    if (ranks_ > 1 && random() % 2 == 0) {
      ::kill(ranks[random() % ranks.size()], SIGKILL);
    } else {
      for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    }
    wait();
  }
  int wait() {
    if (status_ < 0) waitpid(pid_, &status_, 0);
    return status_;
  }

 private:
  std::vector<pid_t> children() const {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(entry.path() / "stat");
      std::string stat{std::istreambuf_iterator<char>(file), {}};
      pid_t parent = 0;  // "pid (name) state parent …"
      if (const auto end = stat.rfind(')'); end != std::string::npos)
        std::sscanf(stat.c_str() + end + 1, " %*c %d", &parent);
      if (parent == pid_) found.push_back(static_cast<pid_t>(std::stol(name)));
    }
    return found;
  }

  int ranks_;
  pid_t pid_ = 0;
  int status_ = -1;
};

class KillTest {
 public:
  explicit KillTest(std::uint64_t seed) : random_(seed) {
    corpus_ = directory_.write("corpus.txt", small_corpus(200));
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) max_ranks_ = 1;
    for (int ranks = 1; ranks <= max_ranks_; ++ranks) {
      const auto start = Clock::now();
      Process whole(ranks, config(ranks, reference(ranks), 2), output_);
      expect_success(whole.wait(), "the uninterrupted run");
      duration_[ranks] = std::chrono::duration<double>(Clock::now() - start).count();
    }
  }

  // Runs and kills one run up to `kills` times; returns the number of kills.
  int run(int number, int kills) {
    const int ranks = number % 3 == 2 ? max_ranks_ : 1;
    const fs::path run = directory_ / fmt::format("run{}", number);
    const fs::path file = config(ranks, run, 1 + number % 2);
    int killed = 0;
    for (; killed < kills; ++killed)
      if (!kill_once(ranks, run, file)) break;  // it finished before the kill
    Process last(ranks, file, output_);
    expect_success(last.wait(), fmt::format("run {} after {} kills", number, killed));
    expect_same(run, reference(ranks));
    fmt::print("run {}: {} rank{}, killed {} times, same result as without kills\n", number, ranks,
               ranks == 1 ? "" : "s", killed);
    std::fflush(stdout);
    fs::remove_all(run);
    return killed;
  }

  void summarize() const {
    for (const auto& [what, count] : kills_) fmt::print("  {} in {}\n", count, what);
    for (const auto& [what, count] : leftovers_) fmt::print("  {} left {} behind\n", count, what);
  }

 private:
  fs::path reference(int ranks) const { return directory_ / fmt::format("whole-{}-ranks", ranks); }
  // A save every `every` steps. They are written in the background, so with 1 there is always one.
  fs::path config(int ranks, const fs::path& run, int every) {
    std::string text = small_config(
        corpus_, run.string(),
        fmt::format("steps: {}, checkpoint_every: {}, eval_every: 0, dropout: 0.1", kSteps, every),
        fmt::format("layout: {{zero: {}}}\nthreads: 1\n", ranks == 1 ? 0 : 1));
    const auto set = [&](const std::string& from, const std::string& to) {
      text.replace(text.find(from), from.size(), to);
    };
    set("keep_checkpoints: 0", "keep_checkpoints: 1");
    set("micro: 2", "micro: 1");
    return directory_.write(run.filename().string() + ".yaml", text);
  }

  bool kill_once(int ranks, const fs::path& run, const fs::path& file) {
    const auto moment = static_cast<Moment>(random_() % 3);
    if (moment == Moment::Removal) slow_down_removals(run / "checkpoints");
    const double wait_s = duration_[ranks] * std::uniform_real_distribution<>(0, 1)(random_);
    const auto deadline = Clock::now() + std::chrono::duration<double>(wait_s);
    Process process(ranks, file, output_);
    while (!process.ended()) {
      const bool now =
          moment == Moment::Any ? Clock::now() > deadline : has_hidden(run / "checkpoints", moment);
      if (!now) continue;
      // At a random time during the save or removal, not only at its beginning.
      if (moment != Moment::Any && random_() % 2 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random_() % 4000));
      process.kill(random_);
      ++kills_[fmt::format("{}, {} rank{}", to_string(moment), ranks, ranks == 1 ? "" : "s")];
      count_leftovers(run / "checkpoints");
      return true;
    }
    return false;
  }

  // Adds user files to old checkpoints, so that removing them takes longer.
  static void slow_down_removals(const fs::path& folder) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.path().filename().string().starts_with("step-"))
        for (int i = 0; i < 2000; ++i) std::ofstream(entry.path() / fmt::format("note-{}", i)) << i;
  }

  static bool has_hidden(const fs::path& folder, Moment moment) {
    const std::string suffix = moment == Moment::Save ? ".tmp" : ".trash";
    DIR* const directory = opendir(folder.c_str());
    if (directory == nullptr) return false;
    bool found = false;
    while (const dirent* entry = readdir(directory)) {
      const std::string_view name = entry->d_name;
      found = found || (name.starts_with(".step-") && name.ends_with(suffix));
    }
    closedir(directory);
    return found;
  }

  void count_leftovers(const fs::path& folder) {
    std::error_code error;
    for (const fs::path& where : {folder, folder / "state"})
      for (const auto& entry : fs::directory_iterator(where, error)) {
        const std::string name = entry.path().filename();
        if (name.starts_with(".step-"))
          ++leftovers_[fmt::format("a {} directory of the {}", entry.path().extension().string(),
                                   where == folder ? "model" : "state")];
        else if (where != folder && !fs::exists(folder / name))
          ++leftovers_["a state without its model"];
      }
  }

  void expect_success(int status, const std::string& what) const {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    failure("{} ended with status {}: {}", what, status, read_text_file(output_));
  }
  static void expect_same(const fs::path& run, const fs::path& reference) {
    const std::string last = checkpoint_name(kSteps);
    for (const std::string& file :
         {last + "/model.safetensors", last + "/trainer.json", last + "/config.json",
          "state/" + last + "/optimizer.safetensors"})
      if (read_text_file(run / "checkpoints" / file) !=
          read_text_file(reference / "checkpoints" / file))
        failure("{} differs from that of an uninterrupted run",
                (run / "checkpoints" / file).string());
    for (const fs::path& where : {run / "checkpoints", run / "checkpoints/state"})
      for (const auto& entry : fs::directory_iterator(where))
        if (const std::string name = entry.path().filename();
            name.starts_with(".") || name.find(".damaged") != std::string::npos)
          failure("{} was left behind", entry.path().string());
  }

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  std::string corpus_;
  fs::path output_ = directory_ / "output.txt";
  int max_ranks_ = 2;
  std::map<int, double> duration_;  // in seconds, by number of ranks
  std::map<std::string, int> kills_, leftovers_;
};

int run(int kills, std::uint64_t seed, const std::string& only) {
  fmt::print("{} kills, seed {}\n", kills, seed);
  const bool train = std::string("train").find(only) != std::string::npos;
  if (kill_data_commands(kills, seed, only) == 0 && !train)
    failure("no command has '{}' in its name", only);
  if (!train) return 0;
  KillTest test(seed);
  int killed = 0, runs = 0;
  while (killed < kills) killed += test.run(runs++, std::min(5, kills - killed));
  fmt::print("{} kills in {} runs, every run bitwise the same as without kills:\n", killed, runs);
  test.summarize();
  return 0;
}

}  // namespace
}  // namespace kintsugi

int main(int argc, char** argv) {
  CLI::App app{"Kills runs at random moments and compares the result with an uninterrupted run."};
  int kills = 50;
  std::uint64_t seed = std::random_device{}();
  app.add_option("kills", kills, "Number of kills")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed, "Random seed; the exact times of the kills still vary");
  std::string only;
  app.add_option("--only", only,
                 "Only commands with this text in their name, such as 'data dedup'");
  CLI11_PARSE(app, argc, argv);
  try {
    return kintsugi::run(kills, seed, only);
  } catch (const std::exception& error) {
    fmt::print("FAILED (seed {}): {}\n", seed, error.what());
    return 1;
  }
}
