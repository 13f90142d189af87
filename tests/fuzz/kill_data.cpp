#include "kill_data.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "support/directory_contents.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr int kMostKills = 5;  // of one output

// A process of the program.
class Task {
 public:
  Task(const Words& arguments, const fs::path& output) : output_(output) {
    pid_ = fork();
    if (pid_ != 0) return;
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    std::vector<char*> words = {const_cast<char*>("kintsugi")};
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execv(kintsugi_binary().c_str(), words.data());
    _exit(127);
  }
  bool ended() {
    if (status_ < 0 && waitpid(pid_, &status_, WNOHANG) == 0) status_ = -1;
    return status_ >= 0;
  }
  void kill() {
    if (!ended()) ::kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    if (status_ < 0) waitpid(pid_, &status_, 0);
    return status_;
  }
  bool killed() { return WIFSIGNALED(wait()); }
  int code() { return WIFEXITED(wait()) ? WEXITSTATUS(status_) : -1; }
  std::string said() const { return read_text_file(output_); }

 private:
  fs::path output_;
  pid_t pid_ = 0;
  int status_ = -1;
};

struct Command {
  std::string name;
  Words words;   // without --output
  Words stages;  // of job arrays; "": it has one, without a name
  double duration_s = 0;
  std::map<std::string, std::string> files = {};  // of an undisturbed one
};

enum class Form { OneProcess, Arrays, FullDisk };
const char* to_string(Form form) {
  return form == Form::OneProcess ? "one process"
         : form == Form::Arrays   ? "job array"
                                  : "full disk";
}

constexpr const char* kCommands[] = {"data curate", "data dedup"};

std::vector<std::pair<std::size_t, Form>> kinds_named(const std::string& only) {
  std::vector<std::pair<std::size_t, Form>> kinds;
  for (std::size_t command = 0; command < std::size(kCommands); ++command)
    for (const Form form : {Form::OneProcess, Form::Arrays, Form::FullDisk}) {
      const std::string name = fmt::format("{}: {}", kCommands[command], to_string(form));
      const bool can = form != Form::FullDisk || geteuid() == 0;  // only root can mount a disk
      if (can && name.find(only) != std::string::npos) kinds.emplace_back(command, form);
    }
  return kinds;
}

class DataKills {
 public:
  explicit DataKills(std::uint64_t seed) : random_(seed) {
    write_corpus();
    directory_.write("recipe.yaml",
                     "steps:\n  - repair:\n  - gopher_repetition:\n"
                     "  - gopher_quality: {min_stop_words: 0}\n  - personal_data:\n"
                     "  - sample: {keep: 0.8}\n");
    const std::string pattern = (directory_ / "corpus/*.jsonl").string();
    commands_ = {{.name = kCommands[0],
                  .words = {"data", "curate", (directory_ / "recipe.yaml").string(), "--input",
                            pattern, "--shard-size", "2MB", "--save-every", "0s", "--threads", "2"},
                  .stages = {""}},
                 {.name = kCommands[1],
                  .words = {"data", "dedup", pattern, "--memory", "16MB", "--threads", "1"},
                  .stages = {"signatures", "pairs", "clusters", "remove"}}};
    for (Command& command : commands_) {
      const fs::path output = directory_ / "whole" / command.name;
      fs::create_directories(output.parent_path());
      const auto start = Clock::now();
      finish(with_output(command, output));
      command.duration_s = std::chrono::duration<double>(Clock::now() - start).count();
      command.files = directory_contents(output);
    }
  }

  // Returns the number of disturbances, at most `most`.
  int trial(std::size_t kind, Form form, int most) {
    const Command& command = commands_[kind];
    const fs::path output = directory_ / fmt::format("out{}", number_++) / "output";
    fs::create_directories(output.parent_path());
    int done = 0;
    if (form == Form::FullDisk) {
      fill_disk(command, output);
      done = 1;
    } else {
      while (done < most && disturb(command, form, output)) ++done;
    }
    form == Form::Arrays ? void(run_arrays(command, output, {}, "end"))
                         : finish(with_output(command, output));
    compare(command, output);
    fmt::print("{}, {}: disturbed {} times, the same files as without\n", command.name,
               to_string(form), done);
    std::fflush(stdout);
    if (form == Form::FullDisk) ::umount2(output.parent_path().c_str(), MNT_DETACH);
    fs::remove_all(output.parent_path());
    return done;
  }

  void summarize() const {
    for (const auto& [what, count] : counts_) fmt::print("  {} {}\n", count, what);
  }

 private:
  // Six small files and two that have several batches; a third of the documents are
  // near-duplicates.
  void write_corpus() {
    fs::create_directory(directory_ / "corpus");
    std::mt19937_64 random(5);
    std::vector<std::string> texts;
    for (int file = 0; file < 8; ++file) {
      const std::size_t size = file % 4 == 3 ? 9'000'000 : 600'000;
      std::string lines;
      while (lines.size() < size) {
        std::string text;
        if (!texts.empty() && random() % 3 == 0) {
          text = texts[random() % texts.size()] + " and a word";
        } else {
          for (unsigned words = 60 + random() % 200; words > 0; --words)
            text += fmt::format("{}w{}", text.empty() ? "" : " ", random() % 20000);
          if (random() % 10 == 0) text += " mail me@example.com";
          texts.push_back(text);
        }
        lines += fmt::format("{{\"id\": {}, \"text\": \"{}\"}}\n", random() % 1000000, text);
      }
      directory_.write(fmt::format("corpus/{}.jsonl", file), lines);
    }
  }

  static Words with_output(const Command& command, const fs::path& output) {
    Words words = command.words;
    words.insert(words.end(), {"--output", output.string()});
    return words;
  }

  fs::path log(int task) const { return directory_ / fmt::format("log-{}.txt", task); }

  void finish(const Words& words) {
    Task task(words, log(0));
    if (task.code() != 0) failure("ended with status {}: {}", task.wait(), task.said());
  }

  void compare(const Command& command, const fs::path& output) const {
    const auto files = directory_contents(output);
    for (const auto& [name, bytes] : command.files) {
      const auto found = files.find(name);
      if (found == files.end()) failure("{} is missing", (output / name).string());
      if (found->second != bytes)
        failure("{} differs from that of an undisturbed run", (output / name).string());
    }
    for (const auto& [name, bytes] : files)
      if (!command.files.contains(name)) failure("{} was left behind", (output / name).string());
  }

  // False: it was over before.
  bool disturb(const Command& command, Form form, const fs::path& output) {
    const double wait_s = command.duration_s * std::uniform_real_distribution<>(0, 1)(random_);
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                             std::chrono::duration<double>(wait_s));
    if (form == Form::Arrays) return run_arrays(command, output, deadline, "kill");
    Task task(with_output(command, output), log(0));
    while (!task.ended() && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    task.kill();
    if (!task.killed() && task.code() != 0) failure("{} failed: {}", command.name, task.said());
    if (task.killed()) ++counts_[fmt::format("kills of {}", command.name)];
    return task.killed();
  }

  // A stage after the other, each with another number of tasks at once. At the deadline, one of
  // them or all are killed, and true is returned.
  bool run_arrays(const Command& command, const fs::path& output,
                  std::optional<Clock::time_point> deadline, const std::string& what) {
    for (const std::string& stage : command.stages) {
      const int count = 1 + static_cast<int>(random_() % 4);
      std::vector<Task> tasks;
      for (int i = 0; i < count; ++i) {
        Words words = with_output(command, output);
        words.insert(words.end(), {"--job", fmt::format("{}/{}", i, count)});
        if (!stage.empty()) words.insert(words.end(), {"--stage", stage});
        tasks.emplace_back(words, log(i));
      }
      const auto all_ended = [&] {
        return std::all_of(tasks.begin(), tasks.end(), [](Task& task) { return task.ended(); });
      };
      while (!all_ended() && (!deadline || Clock::now() < *deadline))
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      if (!all_ended()) random_() % 2 == 0 ? tasks[random_() % tasks.size()].kill() : kill(tasks);
      bool killed = false;
      for (Task& task : tasks) {
        killed |= task.killed();
        if (!task.killed() && task.code() != 0)
          failure("{}, a task of {} at {}: {}", command.name, count, what, task.said());
      }
      if (killed) ++counts_[fmt::format("kills of an array of {}", command.name)];
      if (killed) return true;
    }
    return false;
  }
  static void kill(std::vector<Task>& tasks) {
    for (Task& task : tasks) task.kill();
  }

  // There is room for a part of the output, and later for all of it.
  void fill_disk(const Command& command, const fs::path& output) {
    std::size_t bytes = 0;
    for (const auto& [name, content] : command.files) bytes += content.size();
    const double part = std::uniform_real_distribution<>(0.05, 0.9)(random_);
    const fs::path disk = output.parent_path();
    const std::string size = fmt::format("size={:.0f}", part * static_cast<double>(bytes));
    if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, size.c_str()) != 0)
      failure("cannot mount a small file system");
    Task task(with_output(command, output), log(0));
    if (task.code() != 1 || task.said().find("No space left") == std::string::npos)
      failure("{} on a full disk: exit code {}: {}", command.name, task.code(), task.said());
    if (::mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=1g") != 0)
      failure("cannot enlarge a small file system");
    ++counts_[fmt::format("full disks of {}", command.name)];
  }

  std::mt19937_64 random_;
  TemporaryDirectory directory_;
  std::vector<Command> commands_;
  std::map<std::string, int> counts_;
  int number_ = 0;
};

}  // namespace

int kill_data_commands(int disturbances, std::uint64_t seed, const std::string& only) {
  const auto kinds = kinds_named(only);
  if (kinds.empty()) return 0;
  DataKills test(seed);
  int done = 0;
  for (std::size_t i = 0; done < disturbances; ++i) {
    const auto& [command, form] = kinds[i % kinds.size()];
    done += test.trial(command, form, std::min(kMostKills, disturbances - done));
  }
  fmt::print("{} disturbances of data commands, all with the same files as without:\n", done);
  test.summarize();
  return done;
}

}  // namespace kintsugi
