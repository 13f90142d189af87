// Two commands on one run directory, and a directory that is moved during the run.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class RunDirectory : public ProgramTest {
 protected:
  RunDirectory() {
    directory_.write("corpus.txt", small_corpus(200));
    directory_.write("run.yaml", small_config("corpus.txt", "run",
                                              "steps: 30, checkpoint_every: 10, eval_every: 0",
                                              "device: cpu\nthreads: 1\n"));
  }
  // Runs a command in the shell, in another thread. A run that does not notice anything is stopped.
  std::future<int> start(const std::string& command, const std::string& output) {
    return std::async(std::launch::async, [=, this] {
      const std::string whole = fmt::format(
          "cd '{}' && kintsugi='{}' && export kintsugi && {{ {}\n}} >{} 2>&1 </dev/null",
          directory_.path().string(), kintsugi_binary(), command, output);
      const int status = std::system(whole.c_str());
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    });
  }
  static bool wait_for(const std::function<bool()>& happened) {
    for (int i = 0; i < 1200 && !happened(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
    return happened();
  }
  bool has_lines(const std::string& file, std::size_t lines) {
    const std::string text = content_of(file);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) >= lines;
  }
  // A second command while the first one trains: refused, and says who trains.
  void expect_refused(const Outcome& second) {
    EXPECT_EQ(second.code, 2) << second.error;
    EXPECT_THAT(second.error, ContainsRegex("^error: .*run is in use by process [0-9]+ on "));
    EXPECT_EQ(std::count(second.error.begin(), second.error.end(), '\n'), 1) << second.error;
  }
};

TEST_F(RunDirectory, ASecondTrainIsToldWhoTrains) {
  auto first =
      start("timeout 60 \"$kintsugi\" train run.yaml --set train.steps=100000", "first.txt");
  ASSERT_TRUE(wait_for([&] { return has_lines("run/metrics.jsonl", 3); }))
      << content_of("first.txt");
  expect_refused(run_kintsugi("train run.yaml"));
  expect_refused(run_kintsugi("launch run.yaml --local"));
  directory_.write("run/stop", "");
  EXPECT_EQ(first.get(), 75) << content_of("first.txt");
  EXPECT_FALSE(fs::exists(directory_ / "run/.lock"));
  EXPECT_FALSE(fs::exists(directory_ / "run/.launch.lock"));
}

// The second launch comes between the checks of the first one and the start of its ranks.
TEST_F(RunDirectory, ASecondLaunchDoesNotReplaceTheSettingsOfTheFirst) {
  fs::create_directory(directory_ / "bin");
  directory_.write("bin/bash",
                   "#!/bin/sh\nwhile ! [ -e go ]; do sleep 0.05; done\nexec /bin/bash \"$@\"\n");
  fs::permissions(directory_ / "bin/bash", fs::perms::owner_all);
  auto first = start(
      "PATH=\"$PWD/bin:$PATH\" \"$kintsugi\" launch run.yaml --local --set optimizer.lr=0.001",
      "first.txt");
  const bool written = wait_for([&] { return fs::exists(directory_ / "run/launch/job.json"); });
  const Outcome second = run_kintsugi("launch run.yaml --local --set optimizer.lr=0.002");
  const Outcome third = run_kintsugi("train run.yaml --set optimizer.lr=0.002");
  directory_.write("go", "");
  EXPECT_EQ(first.get(), 0) << content_of("first.txt");
  ASSERT_TRUE(written) << content_of("first.txt");
  expect_refused(second);
  expect_refused(third);
  EXPECT_THAT(content_of("run/config.yaml"),
              AllOf(HasSubstr("lr: 0.001"), Not(HasSubstr("lr: 0.002"))));
}

TEST_F(RunDirectory, ARefusedLaunchLeavesNothing) {
  EXPECT_EQ(run_kintsugi("launch run.yaml --local --set 'data.train=[{path: none.txt}]'").code, 2);
  EXPECT_FALSE(fs::exists(directory_ / "run"));
}

// The run must not create its old path again, where its checkpoints would lack everything else.
TEST_F(RunDirectory, AMovedRunEnds) {
  for (const char* command : {"train run.yaml", "launch run.yaml --local"}) {
    auto run = start(fmt::format("timeout 60 \"$kintsugi\" {} --set train.steps=100000", command),
                     "out.txt");
    ASSERT_TRUE(wait_for([&] { return has_lines("run/metrics.jsonl", 12); }))
        << content_of("out.txt");
    fs::rename(directory_ / "run", directory_ / "moved");
    EXPECT_EQ(run.get(), 2) << command << content_of("out.txt");
    EXPECT_THAT(content_of("out.txt"),
                HasSubstr("was moved to " + fs::canonical(directory_ / "moved").string()));
    EXPECT_FALSE(fs::exists(directory_ / "run")) << command;
    EXPECT_TRUE(fs::exists(directory_ / "moved/config.yaml"));
    EXPECT_EQ(run_kintsugi("train run.yaml --set run.dir=moved --set train.steps=100000 --set "
                           "run.time_limit=1s")
                  .code,
              75);  // it continues there
    fs::remove_all(directory_ / "moved");
  }
}

TEST_F(RunDirectory, AReplacedDirectoryIsNotWrittenTo) {
  auto run = start("timeout 60 \"$kintsugi\" train run.yaml --set train.steps=100000", "out.txt");
  ASSERT_TRUE(wait_for([&] { return has_lines("run/metrics.jsonl", 3); })) << content_of("out.txt");
  fs::create_directory(directory_ / "other");
  directory_.write("other/notes.txt", "of the user");
  fs::rename(directory_ / "run", directory_ / "moved");
  fs::rename(directory_ / "other", directory_ / "run");
  EXPECT_EQ(run.get(), 2) << content_of("out.txt");
  EXPECT_THAT(content_of("out.txt"), HasSubstr("was moved to"));
  // What was under way between two checks, at most: the records of one step and one save.
  const std::set<std::string> may_be_under_way = {"metrics.jsonl", "metrics.prom", "energy.json",
                                                  "status.json",   "events.jsonl", "checkpoints",
                                                  "log.txt"};
  EXPECT_EQ(content_of("run/notes.txt"), "of the user");
  for (const auto& entry : fs::directory_iterator(directory_ / "run"))
    if (const std::string name = entry.path().filename().string(); name != "notes.txt") {
      EXPECT_TRUE(may_be_under_way.contains(name)) << name;
    }
  EXPECT_FALSE(has_lines("run/metrics.jsonl", 2));
}

}  // namespace
}  // namespace kintsugi
