// Finding runs in folders that may hold anything.
#include "report/runs/run_index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/runs/run_view.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

class RunFolders : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  void write_run(const std::string& name, const std::string& state, int step = 7) const {
    write(name + "/status.json",
          fmt::format(R"({{"state":"{}","step":{},"total_steps":100,"tokens":{},"loss":2.5,)"
                      R"("valid_loss":null,"eta_s":50,"pid":4242,"attempt":2,"goodput":)"
                      R"({{"fraction":0.75}},"reason":"because"}})",
                      state, step, 64 * step));
    write(name + "/config.yaml", "optimizer:\n  lr: 0.001\n");
    write(name + "/metrics.jsonl",
          fmt::format("{{\"step\":{0},\"tokens\":{1},\"loss\":1.5,\"lr\":0.25,\"mfu\":0.5,"
                      "\"tokens_per_s\":100,\"step_time_s\":2,\"energy_j\":400}}\n",
                      step, 64 * step));
  }
  // A machine on which `alive_` decides, at `now_`.
  Surroundings machine() {
    return {.now_s = [this] { return now_; },
            .host = "n1",
            .is_alive = [this](std::int64_t process) { return alive_ && process == 4242; }};
  }
  RunIndex index(std::vector<fs::path> folders = {}) {
    if (folders.empty()) folders = {directory_.path()};
    RunIndex result(folders, machine());
    result.search();
    return result;
  }
  static std::vector<std::string> ids(const RunIndex& index) {
    std::vector<std::string> list;
    for (const auto& [id, run] : index.runs()) list.push_back(id);
    return list;
  }
  // Why a file was left out; empty: it was not.
  static std::string why(const RunIndex& index, const std::string& name) {
    for (const SkippedFile& file : index.skipped())
      if (file.path.string().ends_with(name)) return file.why;
    return "";
  }
  // The age of all files of a run.
  void set_age(const std::string& run, double age_s) const {
    for (const auto& entry : fs::directory_iterator(directory_ / run)) {
      const auto second = static_cast<time_t>(now_ - age_s);
      const timespec times[2] = {{second, 0}, {second, 0}};
      ::utimensat(AT_FDCWD, entry.path().c_str(), times, 0);
    }
  }

  TemporaryDirectory directory_;
  double now_ = 1.8e9;
  bool alive_ = true;
};

TEST_F(RunFolders, SummarizesRuns) {
  write_run("a", "finished");
  write_run("sweep/lr1/b", "failed", 9);
  const RunIndex runs = index();
  ASSERT_EQ(ids(runs), (std::vector<std::string>{"a", "sweep/lr1/b"}));
  const RunSummary& b = runs.find("sweep/lr1/b")->summary();
  EXPECT_EQ(b.state, "failed");
  EXPECT_EQ(b.reason, "because");
  EXPECT_EQ(b.step, 9);
  EXPECT_EQ(b.total_steps, 100);
  EXPECT_EQ(b.loss, 1.5) << "metrics.jsonl is newer than status.json";
  EXPECT_EQ(b.lr, 0.25);
  EXPECT_EQ(b.mfu, 0.5);
  EXPECT_EQ(b.attempts, 2);
  EXPECT_EQ(b.goodput, 0.75);
  EXPECT_FALSE(b.energy_j) << "no energy.json";
  EXPECT_EQ(runs.find("../a"), nullptr);
  const auto json = to_json(b);
  EXPECT_EQ(json["id"], "sweep/lr1/b");
  EXPECT_TRUE(json["valid_loss"].is_null());
}

TEST_F(RunFolders, NamesTheFolderWhenThereAreSeveral) {
  write_run("x/runs/a", "finished");
  write_run("y/runs/a", "finished");
  write_run("z", "finished");
  EXPECT_EQ(ids(index({directory_ / "x/runs", directory_ / "y/runs", directory_ / "z",
                       directory_ / "x/../x/runs"})),
            (std::vector<std::string>{"runs-2/a", "runs/a", "z"}));
  EXPECT_EQ(ids(index({directory_ / "z"})), std::vector<std::string>{"."});
  const std::string error = user_error_of([&] { index({directory_ / "nothing"}); });
  EXPECT_NE(error.find("nothing does not exist"), std::string::npos) << error;
  const fs::path file = write("file", "text");
  const std::string no_folder = user_error_of([&] { index({file}); });
  EXPECT_NE(no_folder.find("file is not a directory"), std::string::npos) << no_folder;
}

TEST_F(RunFolders, ARunningRunWithoutSignsOfLife) {
  write_run("a", "running");
  write(
      "a/layout.json",
      R"({"ranks":4,"nodes":["n1.site"],"node_of_rank":[0,0],"model":{"family":"llama","parameters":1000000}})");
  const auto state = [&](double age) {
    set_age("a", age);
    const RunSummary s = index().find("a")->summary();
    return s.state + (s.stalled ? " stalled" : "");
  };
  EXPECT_EQ(index().find("a")->summary().model, "llama 1 M");
  EXPECT_EQ(state(200), "running");
  EXPECT_EQ(state(400), "running stalled") << "a step takes 2 s";
  EXPECT_EQ(state(1e6), "running stalled") << "its process exists";
  alive_ = false;
  EXPECT_EQ(state(10), "running");
  EXPECT_EQ(state(60), "lost");
  write("a/layout.json", R"({"ranks":4,"nodes":["n2"],"node_of_rank":[0]})");
  EXPECT_EQ(state(60), "running") << "on another node: no process of this machine";
  EXPECT_EQ(state(3000), "running stalled");
  EXPECT_EQ(state(4000), "lost");
}

TEST_F(RunFolders, SlowStepsAreNoStall) {
  write_run("a", "running");
  write("a/metrics.jsonl", "{\"step\":1,\"step_time_s\":600}\n");
  set_age("a", 7200);
  EXPECT_FALSE(index().find("a")->summary().stalled) << "12 steps of ten minutes";
}

TEST_F(RunFolders, SkipsWhatIsNoRun) {
  write_run("good", "finished");
  write("half/status.json", "{\"state\":\"runn");
  write("foreign/status.json", "{\"version\": 1}");
  write_run("foreign/inner", "finished");
  write("deep/status.json", std::string(100'000, '['));
  write("huge/status.json", "");
  fs::resize_file(directory_ / "huge/status.json", 100u << 20);
  fs::create_directories(directory_ / "pipe");
  ASSERT_EQ(::mkfifo((directory_ / "pipe/status.json").c_str(), 0600), 0);
  fs::create_directories(directory_ / "link");
  fs::create_symlink(directory_ / "good/status.json", directory_ / "link/status.json");
  fs::create_directories(directory_ / "device");
  fs::create_symlink("/dev/zero", directory_ / "device/status.json");
  fs::create_symlink(directory_.path(), directory_ / "loop");
  write_run(".hidden", "finished");
  write("empty/metrics.jsonl", "");

  const RunIndex runs = index();
  EXPECT_EQ(ids(runs), (std::vector<std::string>{"foreign/inner", "good"}));
  EXPECT_EQ(why(runs, "half/status.json"), "is not the status of a run: it is not JSON");
  EXPECT_EQ(why(runs, "foreign/status.json"), "is not the status of a run");
  EXPECT_EQ(why(runs, "deep/status.json"),
            "is not the status of a run: it is nested more than 64 levels deep");
  EXPECT_NE(why(runs, "huge/status.json").find("is larger than"), std::string::npos);
  EXPECT_EQ(why(runs, "pipe/status.json"), "is a pipe");
  EXPECT_EQ(why(runs, "link/status.json"), "is a symbolic link");
  EXPECT_EQ(why(runs, "device/status.json"), "is a symbolic link");
  EXPECT_EQ(why(runs, "loop"), "") << "links to directories are not searched, as documented";
}

TEST_F(RunFolders, DamagedFilesOfARunAreNamed) {
  write_run("a", "finished");
  write("a/layout.json", "{\"ranks\": 4");
  write("a/energy.json", "nonsense");
  fs::remove(directory_ / "a/metrics.jsonl");
  ASSERT_EQ(::mkfifo((directory_ / "a/metrics.jsonl").c_str(), 0600), 0);
  const RunIndex runs = index();
  ASSERT_EQ(ids(runs), std::vector<std::string>{"a"});
  EXPECT_EQ(runs.find("a")->summary().loss, 2.5) << "of status.json";
  EXPECT_NE(why(runs, "a/layout.json").find("damaged"), std::string::npos);
  EXPECT_NE(why(runs, "a/energy.json").find("damaged"), std::string::npos);
  EXPECT_EQ(why(runs, "a/metrics.jsonl"), "is a pipe");
}

TEST_F(RunFolders, SearchesSixLevels) {
  write_run("1/2/3/4/5/six", "finished");
  write_run("1/2/3/4/5/6/seven", "finished");
  const RunIndex runs = index();
  EXPECT_EQ(ids(runs), std::vector<std::string>{"1/2/3/4/5/six"});
  EXPECT_NE(why(runs, "3/4/5/6").find("not searched"), std::string::npos);
}

TEST_F(RunFolders, DoesNotSearchInsideRuns) {
  write_run("a", "finished");
  write_run("a/checkpoints/step-5", "finished");
  EXPECT_EQ(ids(index()), std::vector<std::string>{"a"});
}

TEST_F(RunFolders, NamesWithControlCharactersArePrintable) {
  write_run("evil\x1b[2J<img src=x onerror=alert(1)>", "finished");
  const RunIndex runs = index();
  ASSERT_EQ(ids(runs), std::vector<std::string>{"evil\\x1b[2J<img src=x onerror=alert(1)>"});
}

TEST_F(RunFolders, ReadsOnlyTheEndOfLargeFiles) {
  for (int run = 0; run < 20; ++run) {
    write_run(fmt::format("run{}", run), "finished");
    std::string text;
    for (int step = 1; step <= 5000; ++step)
      text += fmt::format("{{\"step\":{},\"loss\":{},\"tokens_per_s\":1}}\n", step, step);
    write(fmt::format("run{}/metrics.jsonl", run), text);
  }
  RunIndex runs = index();
  EXPECT_EQ(runs.find("run3")->summary().loss, 5000);
  const std::uint64_t first = runs.bytes_read();
  EXPECT_LT(first, 20u * (16 << 10) + 20'000);
  runs.search();
  EXPECT_EQ(runs.bytes_read(), first) << "nothing has changed";
  write_run("run3", "finished", 8);
  runs.search();
  EXPECT_EQ(runs.find("run3")->summary().step, 8);
  EXPECT_LT(runs.bytes_read() - first, 2000u);
}

TEST_F(RunFolders, FindsNewAndChangedRunsLater) {
  write_run("a", "running");
  write_run("old", "finished");
  RunIndex runs = index();
  write_run("a", "running", 8);
  write_run("b", "running");
  write_run("old", "running", 9);
  now_ += 1;
  runs.refresh();
  EXPECT_EQ(runs.find("a")->summary().step, 8);
  EXPECT_EQ(runs.find("b"), nullptr) << "new runs are looked for every ten seconds";
  EXPECT_EQ(runs.find("old")->summary().step, 7);
  now_ += 10;
  runs.refresh();
  EXPECT_NE(runs.find("b"), nullptr);
  EXPECT_EQ(runs.find("old")->summary().step, 9);
  fs::remove_all(directory_ / "a");
  now_ += 11;
  runs.refresh();
  EXPECT_EQ(runs.find("a"), nullptr);
}

// ---- what is known of one run

TEST_F(RunFolders, ShowsEverythingOfARun) {
  write_run("a", "finished");
  write("a/goodput.jsonl",
        "{\"event\":\"start\",\"time_s\":110,\"step\":0,\"launched_s\":100,\"submitted_s\":90}\n"
        "{\"event\":\"progress\",\"time_s\":170,\"step\":6,\"steps_s\":50,\"checkpoint_s\":10}\n"
        "{\"event\":\"end\",\"time_s\":200,\"step\":9,\"steps_s\":80,\"checkpoint_s\":10,"
        "\"state\":\"stopped\",\"reason\":\"signal\",\"exit_code\":75}\n"
        "{\"event\":\"start\",\"time_s\":260,\"step\":6,\"launched_s\":250}\n"
        "{\"event\":\"end\",\"time_s\":320,\"step\":12,\"steps_s\":60,\"state\":\"finished\"}\n");
  write("a/layout.json", R"({"ranks":2})");
  write("a/ranks.json", R"({"step":5,"seconds":[1,2]})");
  write("a/samples.jsonl", "{\"step\":1,\"text\":\"<b>\"}\ndamaged\n{\"step\":2}\n{\"half");
  write("a/log.txt", "one\ntwo\nthr");
  write("a/profiles/steps-2-3.json", "{}");
  write("a/profiles/notes.txt", "");
  SeriesCache series;
  const RunIndex runs = index();
  const auto json = run_json(*runs.find("a"), series);
  EXPECT_EQ(json["config"], "optimizer:\n  lr: 0.001\n");
  EXPECT_EQ(json["status"]["state"], "finished");
  EXPECT_EQ(json["layout"]["ranks"], 2);
  EXPECT_EQ(json["ranks"]["seconds"][1], 2);
  EXPECT_EQ(json["samples"].size(), 2u);
  EXPECT_TRUE(json["events"].empty());
  EXPECT_EQ(json["log"], (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(json["energy"].is_null());
  EXPECT_EQ(json["profiles"], std::vector<std::string>{"steps-2-3.json"});
  EXPECT_EQ(json["keys"][0], "loss");
  ASSERT_EQ(json["goodput"]["attempts"].size(), 2u);
  EXPECT_EQ(json["goodput"]["attempts"][0]["exit_code"], 75);

  // Waiting 10 s, startup 10, steps 50, save 10, steps 30; down 50, startup 10, then six steps in
  // 60 s of which three were done before.
  std::string text;
  for (const auto& span : json["goodput"]["timeline"])
    text +=
        fmt::format("{} {} {}-{}; ", span["attempt"].get<int>(), span["kind"].get<std::string>(),
                    span["begin_s"].get<double>(), span["end_s"].get<double>());
  EXPECT_EQ(text,
            "1 waiting 90-100; 1 startup 100-110; 1 productive 110-160; 1 checkpoint 160-170; "
            "1 productive 170-200; 2 down 200-250; 2 startup 250-260; 2 recomputed 260-290; "
            "2 productive 290-320; ");
}

TEST_F(RunFolders, FollowsALog) {
  write("a/log.txt", "one\ntw");
  LogTail tail = read_log_tail(directory_ / "a");
  EXPECT_EQ(tail.lines, std::vector<std::string>{"one"});
  EXPECT_TRUE(read_new_log_lines(directory_ / "a", tail).empty());
  std::ofstream(directory_ / "a/log.txt", std::ios::app) << "o\nthree\n";
  EXPECT_EQ(read_new_log_lines(directory_ / "a", tail), (std::vector<std::string>{"two", "three"}));
  EXPECT_TRUE(read_new_log_lines(directory_ / "a", tail).empty());
  fs::remove(directory_ / "a/log.txt");
  EXPECT_TRUE(read_new_log_lines(directory_ / "a", tail).empty());
  write("a/log.txt", "new\n");
  EXPECT_EQ(read_new_log_lines(directory_ / "a", tail), std::vector<std::string>{"new"});
}

TEST_F(RunFolders, ComparesConfigurations) {
  write_run("a", "finished");
  write_run("b", "finished");
  write("b/config.yaml",
        "optimizer: {lr: 0.002, betas: [0.9, 0.95]}\ndata:\n  train:\n    - path: x\n");
  write_run("c", "finished");
  write("c/config.yaml", "- not a configuration");
  const RunIndex runs = index();
  const auto json = compare_json({runs.find("a"), runs.find("b"), runs.find("c")});
  EXPECT_EQ(json["ids"], (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(json["configuration"], nlohmann::ordered_json::parse(R"([
      {"key":"data.train[0].path","values":[null,"x",null]},
      {"key":"optimizer.betas","values":[null,"[0.9, 0.95]",null]},
      {"key":"optimizer.lr","values":["0.001","0.002",null]}])"));
  EXPECT_EQ(json["same_data"], false);
  EXPECT_EQ(json["summary"].size(), 3u);
  EXPECT_TRUE(compare_json({runs.find("a"), runs.find("a")})["configuration"].empty());
}

}  // namespace
}  // namespace kintsugi
