// The definition of a campaign: what is read, what is refused, and what follows from what.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>

#include "core/child_output.h"
#include "launch/campaign/definition.h"
#include "launch/campaign/filter.h"
#include "launch/campaign/graph.h"
#include "launch/campaign/record.h"
#include "launch/campaign/state.h"
#include "launch/job_description.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kCampaign = R"(campaign: {dir: runs/c, max_gpu_hours: 2.5}
launch: {machine: h200, nodes: 2, time: 1h30min}
nodes:
  score: {eval: "--checkpoint {merge}/model --text x", launch: {nodes: 1}}
  sweep:
    run: base.yaml
    set: {train.steps: 30}
    grid: {optimizer.lr: [1e-3, 2e-3], layout.tp: [1, 2]}
    filter: optimizer.lr * layout.tp < 0.004
  best: {best: {of: sweep, metric: loss}}
  long: {like: best, set: {train.steps: 300, optimizer.lr: 5e-4}}
  cool: {like: long, from: long, at: [100, 300]}
  merge: {model: "merge {cool} --output {self}/model"}
  note: {command: "echo ${HOME} {a,b} '{ x }'", after: [best, score]}
)";

CampaignGraph graph_of(const std::string& text) {
  return CampaignGraph(parse_campaign(text, "c.yaml"));
}
std::vector<std::string> task_names(const CampaignGraph& graph) {
  std::vector<std::string> names;
  for (const CampaignTask& task : graph.tasks()) names.push_back(task.name);
  return names;
}
std::size_t number_of(const CampaignGraph& graph, const std::string& name) {
  return graph.named(name).front();
}
std::vector<std::string> needs_of(const CampaignGraph& graph, const std::string& name) {
  std::vector<std::string> names;
  for (const std::size_t need : graph.task(number_of(graph, name)).needs)
    names.push_back(graph.task(need).name);
  return names;
}

TEST(Campaign, EveryTaskIsBehindThoseThatItNeeds) {
  const CampaignGraph graph = graph_of(kCampaign);
  EXPECT_THAT(task_names(graph),
              ElementsAre("sweep/lr-1e-3_tp-1", "sweep/lr-1e-3_tp-2", "sweep/lr-2e-3_tp-1", "best",
                          "long", "cool/step-100", "cool/step-300", "merge", "score", "note"));
  EXPECT_THAT(needs_of(graph, "best"), testing::SizeIs(3));
  EXPECT_THAT(needs_of(graph, "merge"), ElementsAre("cool/step-100", "cool/step-300"));
  EXPECT_THAT(needs_of(graph, "score"), ElementsAre("merge"));
  EXPECT_THAT(needs_of(graph, "note"), ElementsAre("best", "score"));
  EXPECT_EQ(graph.definition().max_gpu_hours, 2.5);
  EXPECT_EQ(graph.node("sweep").launch.nodes, 2);
  EXPECT_EQ(graph.node("score").launch.nodes, 1);
  EXPECT_EQ(graph.node("score").launch.time_s, 5400);
}

TEST(Campaign, ARunHasTheSettingsOfTheChosenOne) {
  const CampaignGraph graph = graph_of(kCampaign);
  const std::size_t chosen = number_of(graph, "sweep/lr-1e-3_tp-2");
  const auto choice = [&](std::size_t) { return chosen; };
  const CampaignTask& cool = graph.task(number_of(graph, "cool/step-300"));
  EXPECT_THAT(graph.overrides_of(cool, choice),
              ElementsAre("train.steps=\"30\"", "optimizer.lr=\"1e-3\"", "layout.tp=\"2\"",
                          "train.steps=\"300\"", "optimizer.lr=\"5e-4\""));
  EXPECT_EQ(graph.config_of(cool), "base.yaml");
  EXPECT_EQ(cool.at, 300);
  EXPECT_EQ(graph.task(graph.source_of(cool, choice)).name, "long");
  EXPECT_THAT(graph.directories_named(cool, "best", choice),
              ElementsAre("runs/c/sweep/lr-1e-3_tp-2"));
  EXPECT_THAT(graph.directories_named(cool, "self", choice), ElementsAre("runs/c/cool/step-300"));
  EXPECT_THAT(graph.choices_of(cool), ElementsAre(number_of(graph, "best")));
}

TEST(Campaign, RetryingANodeRetriesWhatFollows) {
  const CampaignGraph graph = graph_of(kCampaign);
  std::vector<std::string> names;
  for (const std::size_t task : graph.followers({number_of(graph, "cool/step-100")}))
    names.push_back(graph.task(task).name);
  EXPECT_THAT(names, ElementsAre("merge", "score", "note"));
}

std::vector<std::string> points(const std::string& keys) {
  std::vector<std::string> names;
  const auto definition =
      parse_campaign("campaign: {dir: c}\nnodes:\n  s: {run: r.yaml, " + keys + "}\n", "c.yaml");
  for (const CampaignPoint& point : definition.nodes[0].points) names.push_back(point.name);
  return names;
}

TEST(Campaign, SweepsAreGridsZipsAndLists) {
  EXPECT_THAT(points("grid: {a: [1, 2], b: [3]}"), ElementsAre("a-1_b-3", "a-2_b-3"));
  EXPECT_THAT(points("zip: {a: [1, 2], b: [3, 4]}"), ElementsAre("a-1_b-3", "a-2_b-4"));
  EXPECT_THAT(points("list: [{a: 1}, {a: 2, b: x}]"), ElementsAre("a-1", "a-2_b-x"));
  EXPECT_THAT(points("grid: {a: [1, 2]}, zip: {b: [3, 4], c: [5, 6]}, filter: a < 2 or c == 5"),
              ElementsAre("a-1_b-3_c-5", "a-1_b-4_c-6", "a-2_b-3_c-5"));
  EXPECT_THAT(points("set: {a: 1}"), ElementsAre());
}

TEST(Campaign, Filters) {
  const std::map<std::string, std::string> set = {
      {"optimizer.lr", "1e-3"}, {"batch.global", "4k"}, {"optimizer.kind", "muon"}};
  const auto holds = [&](const std::string& condition) {
    return filter_holds(condition, [&](const std::string& key) -> std::optional<std::string> {
      const auto found = set.find(key);
      return found == set.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_TRUE(holds("optimizer.lr * batch.global == 4"));
  EXPECT_TRUE(holds("batch.global >= 4000 and optimizer.kind == 'muon'"));
  EXPECT_FALSE(holds("not (optimizer.lr > 1e-4) or optimizer.kind != \"muon\""));
  EXPECT_TRUE(holds("1 + 2 * 3 - 4 / 2 == 5"));
  EXPECT_TRUE(holds("1 < 2 or 1 > 2 and 1 > 2")) << "and binds closer than or";
  const auto wrong = [&](const std::string& condition) {
    return user_error_of([&] { holds(condition); });
  };
  EXPECT_THAT(wrong("optimizer.lr"), HasSubstr("a condition is expected, found a number"));
  EXPECT_THAT(wrong("optimizer.lrr < 1"), HasSubstr("the sweep does not set 'optimizer.lrr'"));
  EXPECT_THAT(wrong("optimizer.lr < 'x'"), HasSubstr("a number is compared with a text"));
  EXPECT_THAT(wrong("1 < 2 3"), HasSubstr("'3' is not expected"));
  EXPECT_THAT(wrong("(1 < 2"), HasSubstr("a closing bracket is missing"));
  EXPECT_THAT(wrong("1 <"), HasSubstr("ends where a value is expected"));
  EXPECT_THAT(wrong("'x"), HasSubstr("a quotation mark is missing"));
  EXPECT_THAT(wrong(std::string(100, '(')), HasSubstr("too many brackets"));
}

std::string wrong_nodes(const std::string& nodes) {
  return user_error_of([&] { graph_of("campaign: {dir: c}\nnodes:\n" + nodes); });
}

TEST(Campaign, SaysWhatIsWrong) {
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, after: [b]}\n  b: {run: r.yaml, from: a}\n"),
              AllOf(HasSubstr("c.yaml line 3"), HasSubstr("a needs b needs a")));
  EXPECT_THAT(wrong_nodes("  a: {command: 'echo {a}'}\n"), HasSubstr("a needs a"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml}\n  a: {run: r.yaml}\n"),
              AllOf(HasSubstr("line 4"), HasSubstr("nodes.a is given twice")));
  EXPECT_THAT(
      wrong_nodes("  long: {run: r.yaml}\n  b: {run: r.yaml, from: lnog}\n"),
      AllOf(HasSubstr("line 4"), HasSubstr("there is no node 'lnog' (did you mean 'long'?)")));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, from: b, at: [5]}\n  b: {run: r.yaml}\n"
                          "  c: {command: 'ls {a/step-6}'}\n"),
              AllOf(HasSubstr("line 5: node c"), HasSubstr("did you mean 'a/step-5'")));
  EXPECT_THAT(wrong_nodes("  a: {rnu: r.yaml}\n"), HasSubstr("it does nothing: give run, best"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, grdi: {b: [1]}}\n"),
              AllOf(HasSubstr("nodes.a.grdi"), HasSubstr("did you mean 'grid'")));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, eval: x}\n"), HasSubstr("run and eval: make two"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, at: [3]}\n"), HasSubstr("give from"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, from: b, at: [3, 3]}\n  b: {run: r.yaml}\n"),
              HasSubstr("step 3 is given twice"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, set: {run.dir: x}}\n"),
              HasSubstr("run.dir is set by the campaign"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, grid: {b: [1], b.c: [2]}}\n"),
              HasSubstr("b sets the same values"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, zip: {b: [1], c: [2, 3]}}\n"),
              HasSubstr("it has 2 values, those before have 1"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, list: [{b: 1}, {b: 1}]}\n"),
              HasSubstr("the same values"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, grid: {b: [1, 2]}, filter: b > 2}\n"),
              HasSubstr("no run of the sweep passes it"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, grid: {b: [1, 2]}}\n  b: {like: a}\n"),
              HasSubstr("a is 2 runs: choose one of them with best"));
  EXPECT_THAT(wrong_nodes("  a: {command: ls}\n  b: {best: {of: a}}\n"),
              HasSubstr("a is a command, not a run"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml}\n  b: {best: {of: a, order: least}}\n"),
              HasSubstr("'least' is neither lowest nor highest"));
  EXPECT_THAT(wrong_nodes("  ../a: {run: r.yaml}\n"), HasSubstr("is its directory"));
  std::string axes;
  for (int i = 0; i < 9; ++i) axes += fmt::format("k{}: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], ", i);
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, grid: {" + axes + "}}\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("more than 1000 runs")));
  std::string steps;
  for (int i = 1; i <= 900; ++i) steps += fmt::format("{}, ", i);
  EXPECT_THAT(wrong_nodes("  b: {run: r.yaml}\n  a: {like: b, from: b, at: [" + steps +
                          "], grid: {k: [1, 2], m: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}}\n"),
              HasSubstr("node a: the campaign has more than 2000 jobs"));
  EXPECT_THAT(wrong_nodes("  self: {run: r.yaml}\n"), HasSubstr("choose another name"));
  EXPECT_THAT(wrong_nodes("  a: {run: r.yaml, launch: {nodes: 0}}\n"),
              AllOf(HasSubstr("nodes.a.launch.nodes"), HasSubstr("at least 1")));
  const auto wrong = [](const std::string& text) { return user_error_of([&] { graph_of(text); }); };
  EXPECT_THAT(wrong("nodes: {a: {run: r}}\n"), HasSubstr("campaign is missing"));
  EXPECT_THAT(wrong("campaign: {dir: c}\n"), HasSubstr("it has no nodes"));
  EXPECT_THAT(wrong("campaign: {dir: c, max_gpu_hours: -1}\nnodes: {a: {run: r}}\n"),
              HasSubstr("must be above 0"));
  EXPECT_THAT(wrong("- 1\n"), HasSubstr("is no campaign"));
}

TEST(Campaign, OnlyNodesAreReplacedInCommands) {
  const CampaignGraph graph = graph_of(
      "campaign: {dir: c}\nnodes:\n  long: {run: r.yaml}\n"
      "  a: {command: \"echo {1..3} {lnog} ${long} | awk '{print}' {long} {self}\"}\n");
  EXPECT_THAT(needs_of(graph, "a"), ElementsAre("long"));
  EXPECT_THAT(likely_typos(graph.definition()),
              ElementsAre(AllOf(HasSubstr("line 4: node a: {lnog}"), HasSubstr("'long'?"))));
}

// bash itself says what it reads.
TEST(Campaign, AValueIsOneWordForTheShellWhereverItIs) {
  const std::string value = "/x y/it's \"$HOME\"`1`\\";
  for (const char* text :
       {"printf %s {v}", "printf %s '{v}'", "printf %s \"{v}\"", "printf %s \"$(printf %s {v})\"",
        "printf %s \"$(printf %s \"{v}\")\"", "true \\'; printf %s {v}",
        "true # it's\nprintf %s {v}", "(true 'a'); printf %s {v}", "printf %s ''\"{v}\"''"}) {
    const std::string command = text;
    const std::size_t at = command.find("{v}");
    const std::string line =
        command.substr(0, at) + quoted_at(command, at, value) + command.substr(at + 3);
    const ChildOutput output = run_captured({"bash", "-c", line}, 10);
    EXPECT_EQ(output.out, value) << line << output.error;
  }
}

// Files of a run that began an hour before its last sign of life, and the time that Slurm says.
class CampaignHours : public testing::Test {
 protected:
  CampaignHours()
      : graph_(graph_of(fmt::format("campaign: {{dir: {}}}\nnodes:\n  long: {{run: r}}\n"
                                    "  note: {{command: ls}}\n",
                                    directory_.path().string()))) {
    for (const char* name : {"long", "note"}) fs::create_directories(directory_ / name / "launch");
    fs::create_directory(directory_ / "bin");
    directory_.write("bin/sbatch", "#!/bin/sh\n");
    fs::permissions(directory_ / "bin/sbatch", fs::perms::owner_all);
    path_ = std::getenv("PATH");
    setenv("PATH", ((directory_ / "bin").string() + ":" + path_).c_str(), 1);
    save_plan(directory_.path(), "long", {.fingerprint = "f", .job_ids = {"7"}, .gpus = 4});
    save_plan(directory_.path(), "note", {.fingerprint = "f", .gpus = 4});
    save_job({.run_dir = (directory_ / "long").string(),
              .ranks_per_node = 4,
              .nodes = 2,
              .job_ids = {"7"}});
  }
  ~CampaignHours() override { setenv("PATH", path_.c_str(), 1); }

  void queue(const std::string& line) {
    directory_.write("bin/squeue", "#!/bin/sh\necho '" + line + "'\n");
    fs::permissions(directory_ / "bin/squeue", fs::perms::owner_all);
  }
  // So many hours ago.
  void touch(const std::string& name, double hours, const std::string& text = "") {
    directory_.write(name, text);
    fs::last_write_time(directory_ / name,
                        fs::file_time_type::clock::now() -
                            std::chrono::seconds(static_cast<std::int64_t>(3600 * hours)));
  }
  static double ago(double hours) { return static_cast<double>(std::time(nullptr)) - 3600 * hours; }
  TaskView view(const char* name) const {
    return look_at_tasks(graph_)[graph_.named(name).front()];
  }

  TemporaryDirectory directory_;
  CampaignGraph graph_;
  std::string path_;
};

TEST_F(CampaignHours, AJobThatWaitsAgainUsesNothing) {
  directory_.write("long/launch/supervisor.json",
                   fmt::format("{{\"began\": {}, \"nodes\": 2}}", ago(5)));
  touch("long/status.json", 4, "{\"state\": \"running\"}");
  queue("7|PENDING|Resources|0:00|1-00:00:00");
  EXPECT_NEAR(view("long").gpu_hours, 8.0, 0.1) << "one hour of 2 nodes with 4 ranks";
  EXPECT_EQ(view("long").state, TaskState::Queued);
  queue("7|RUNNING|n1|1:30|1-00:00:00");
  EXPECT_NEAR(view("long").gpu_hours, 8.0, 0.1) << "the job has begun again, but not its run";
  queue("7|RUNNING|n1|5:00:30|1-00:00:00");
  EXPECT_NEAR(view("long").gpu_hours, 40.0, 0.1) << "it goes on";
  directory_.write("long/launch/attempts.jsonl",
                   fmt::format("{{\"began\": {}, \"ended\": {}, \"nodes\": 1}}\n", ago(5), ago(3)));
  EXPECT_NEAR(view("long").gpu_hours, 8.0, 0.1) << "two hours of one node with 4 ranks";
}

TEST_F(CampaignHours, AKilledCommandCountsUntilItsLastSignOfLife) {
  save_progress(directory_.path(), "note", {.began_s = ago(5), .spent_s = 3600});
  touch("note/launch/output.txt", 4.9);
  touch("note/launch/alive", 3);
  queue("");
  EXPECT_NEAR(view("note").gpu_hours, 4 * (1 + 2), 0.1);
  touch("note/launch/exit_code", 2, "0\n");
  EXPECT_NEAR(view("note").gpu_hours, 4 * (1 + 3), 0.1);
}

TEST(Campaign, ADivergedRunIsAFailedOneUnlessItIsCompared) {
  const TemporaryDirectory directory;
  const CampaignGraph graph = graph_of(fmt::format(
      "campaign: {{dir: {}}}\nnodes:\n  long: {{run: r.yaml}}\n  next: {{from: long, like: "
      "long}}\n  sweep: {{run: r.yaml, grid: {{a: [1, 2]}}}}\n  best: {{best: {{of: sweep}}}}\n",
      directory.path().string()));
  for (const char* run : {"long", "sweep/a-1"}) {
    fs::create_directories(directory / run / "launch");
    directory.write(std::string(run) + "/status.json", "{\"state\": \"diverged\"}");
    directory.write(std::string(run) + "/launch/exit_code", "3\n");
  }
  const std::vector<TaskView> views = look_at_tasks(graph);
  const auto view = [&](const char* name) { return views[number_of(graph, name)]; };
  EXPECT_EQ(view("long").state, TaskState::Diverged);
  EXPECT_FALSE(view("long").ended());
  EXPECT_EQ(view("next").state, TaskState::Blocked);
  EXPECT_TRUE(view("sweep/a-1").ended());
  EXPECT_EQ(view("best").state, TaskState::Waiting);
}

// What the kernel says of a program whose file was replaced while it ran.
// The last validation may be followed by many megabytes of other records.
TEST(Campaign, AMetricIsFoundHoweverLongAgoItWasWritten) {
  const TemporaryDirectory directory;
  std::string records = "{\"step\":1,\"valid_loss\":3}\n{\"step\":2,\"valid_loss\":2.5}\n";
  const std::string padding(1000, 'x');
  for (int step = 3; step < 6003; ++step)
    records += fmt::format("{{\"step\":{},\"loss\":2,\"note\":\"{}\"}}\n", step, padding);
  directory.write("metrics.jsonl", records);
  EXPECT_EQ(last_metric(directory.path(), "valid_loss"), 2.5);
  EXPECT_EQ(last_metric(directory.path(), "loss"), 2.0);
  EXPECT_EQ(last_metric(directory.path(), "accuracy"), std::nullopt);
  EXPECT_EQ(last_metric(directory / "none", "loss"), std::nullopt);
}

TEST(Campaign, AProgramThatWasReplacedIsFoundAgain) {
  const TemporaryDirectory directory;
  const fs::path program = directory / "kintsugi", link = directory / "exe";
  fs::create_symlink(program.string() + " (deleted)", link);
  EXPECT_THAT(user_error_of([&] { program_behind(link); }),
              HasSubstr("kintsugi was removed while it ran"));
  directory.write("kintsugi", "");
  EXPECT_EQ(program_behind(link), program);
  directory.write("kintsugi (deleted)", "");
  EXPECT_EQ(program_behind(link).filename(), "kintsugi (deleted)") << "its real name";
}

TEST(Campaign, RecordsSurviveAndDamagedOnesAreRefused) {
  const TemporaryDirectory directory;
  TaskPlan plan{.fingerprint = "f", .job_ids = {"4", "5"}, .gpus = 8, .gpu_hours = 1.5};
  save_plan(directory.path(), "sweep/a", plan);
  EXPECT_EQ(load_plan(directory.path(), "sweep/a"), plan);
  EXPECT_EQ(load_plan(directory.path(), "sweep/b"), TaskPlan{});
  const TaskProgress progress{.refused = "no", .began_s = 5, .chosen = "sweep/a", .value = 0.5};
  save_progress(directory.path(), "best", progress);
  EXPECT_EQ(load_progress(directory.path(), "best"), progress);
  EXPECT_THAT(planned_tasks(directory.path()), ElementsAre("sweep/a"));
  CampaignSnapshot snapshot{.source = "c", .max_gpu_hours = 3, .given_gpu_hours = 3};
  EXPECT_EQ(snapshot_from_json(to_json(snapshot), "s"), snapshot);
  directory.write(".campaign/tasks/best.progress.json", "{\"refused\": 3}");
  EXPECT_THAT(user_error_of([&] { load_progress(directory.path(), "best"); }),
              HasSubstr("best.progress.json is damaged: refused"));
  EXPECT_THAT(user_error_of([&] {
                plan_from_json(
                    "{\"fingerprint\": \"\", \"job_ids\": "
                    "[\"1; rm\"], \"gpus\": 1, \"gpu_hours\": 0, "
                    "\"earlier_gpu_hours\": 0}",
                    "p");
              }),
              HasSubstr("'1; rm' is no job id"));
}

}  // namespace
}  // namespace kintsugi
