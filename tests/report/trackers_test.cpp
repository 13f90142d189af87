// Runs exported to MLflow's file store and to W&B's offline files, against the values of the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "report/documents/exports.h"
#include "report/runs/run_index.h"
#include "support/synthetic_run.h"
#include "support/temporary_directory.h"
#include "support/wandb_file_reader.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::UnorderedElementsAre;

std::vector<std::string> lines_of(const fs::path& file) {
  std::vector<std::string> lines;
  std::istringstream in(read_text_file(file));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

// The keys of a meta.yaml, without the quotes of values.
std::map<std::string, std::string> meta_of(const fs::path& folder) {
  std::map<std::string, std::string> meta;
  for (const std::string& line : lines_of(folder / "meta.yaml")) {
    const std::size_t colon = line.find(": ");
    std::string value = line.substr(colon + 2);
    if (value.size() > 1 && (value[0] == '"' || value[0] == '\''))
      value = value.substr(1, value.size() - 2);
    meta[line.substr(0, colon)] = value;
  }
  return meta;
}

struct Point {
  std::int64_t milliseconds = 0;
  double value = 0;
  std::int64_t step = 0;
};
std::vector<Point> points_of(const fs::path& file) {
  std::vector<Point> points;
  for (const std::string& line : lines_of(file)) {
    Point point;
    std::string rest;
    std::istringstream in(line);
    in >> point.milliseconds >> point.value >> point.step;
    EXPECT_TRUE(in && !(in >> rest)) << line;
    points.push_back(point);
  }
  return points;
}

class Trackers : public testing::Test {
 protected:
  static TrackedRun tracked(const fs::path& directory) {
    SummaryReader reader(resolved(directory));
    reader.refresh(this_machine());
    return tracked_run(reader);
  }
  fs::path make(const SyntheticRun& run = {}, const std::string& name = "a") {
    write_synthetic_run(directory_ / name, run);
    return directory_ / name;
  }
  std::string refused(const TrackedRun& run, const fs::path& store) {
    try {
      export_to_mlflow(run, store);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  TemporaryDirectory directory_;
  fs::path store_ = directory_ / "mlruns";
};

TEST_F(Trackers, MlflowHasEveryValueOfEveryStep) {
  const fs::path run = export_to_mlflow(tracked(make()), store_);
  EXPECT_TRUE(std::regex_match(run.filename().string(), std::regex("[0-9a-f]{32}")));
  EXPECT_TRUE(std::regex_match(run.parent_path().filename().string(), std::regex("[0-9]{18}")));
  EXPECT_EQ(run.parent_path().parent_path(), store_);
  const std::vector<Point> losses = points_of(run / "metrics/loss");
  ASSERT_EQ(losses.size(), 100u);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto k = static_cast<std::int64_t>(i + 1);
    EXPECT_EQ(losses[i].step, k);
    EXPECT_EQ(losses[i].value, 1 + 8.0 / static_cast<double>(k));
    EXPECT_EQ(losses[i].milliseconds, 1700000010000 + 500 * k);
  }
  EXPECT_THAT(points_of(run / "metrics/valid_loss"), SizeIs(10));
  // energy_j is unknown; step, seq and time_s are no metrics.
  EXPECT_THAT(names_in(run / "metrics"),
              UnorderedElementsAre("loss", "valid_loss", "grad_norm", "lr", "tokens", "step_time_s",
                                   "data_wait_s", "tokens_per_s", "mfu", "mfu_full_attention"));
  EXPECT_EQ(read_text_file(run / "params/optimizer.lr"), "0.001");
  EXPECT_EQ(read_text_file(run / "params/train.steps"), "100");
  EXPECT_EQ(read_text_file(run / "tags/mlflow.runName"), "a");
  EXPECT_TRUE(fs::is_directory(run / "artifacts"));
}

TEST_F(Trackers, MlflowKnowsTheRunAndItsExperiment) {
  const fs::path run = export_to_mlflow(tracked(make()), store_);
  const auto meta = meta_of(run);
  const std::string experiment = run.parent_path().filename().string();
  EXPECT_EQ(meta.at("run_id"), run.filename().string());
  EXPECT_EQ(meta.at("experiment_id"), experiment);
  EXPECT_EQ(meta.at("run_name"), "a");
  EXPECT_EQ(meta.at("status"), "3");
  EXPECT_EQ(meta.at("start_time"), "1700000000000");
  EXPECT_EQ(meta.at("end_time"), "1700000070000");
  EXPECT_EQ(meta.at("lifecycle_stage"), "active");
  EXPECT_EQ(meta.at("artifact_uri"), "file://" + (run / "artifacts").string());
  for (const char* key : {"deleted_time", "entry_point_name", "source_name", "source_type",
                          "source_version", "tags", "user_id"})
    EXPECT_TRUE(meta.contains(key)) << key;
  const auto of_experiment = meta_of(run.parent_path());
  EXPECT_EQ(of_experiment.at("experiment_id"), experiment);
  EXPECT_EQ(of_experiment.at("name"), "kintsugi");
  EXPECT_TRUE(fs::is_directory(store_ / ".trash"));
}

TEST_F(Trackers, MlflowStatesFollowTheRun) {
  const auto status = [&](const std::string& state) {
    const fs::path run = export_to_mlflow(tracked(make({.state = state}, state)), store_);
    return meta_of(run).at("status");
  };
  EXPECT_EQ(status("finished"), "3");
  EXPECT_EQ(status("failed"), "4");
  EXPECT_EQ(status("diverged"), "4");
  EXPECT_EQ(status("stopped"), "5");
}

TEST_F(Trackers, ASecondExportUpdatesTheSameRun) {
  const fs::path run = export_to_mlflow(tracked(make({.steps = 40, .state = "stopped"})), store_);
  EXPECT_THAT(points_of(run / "metrics/loss"), SizeIs(40));
  std::ofstream(run / "artifacts/plot.png") << "picture";
  std::ofstream(run / "tags/mlflow.note.content") << "a note";
  fs::create_directories(store_ / "0/0123");
  std::ofstream(store_ / "0/meta.yaml") << "name: Default\n";
  std::ofstream(store_ / "0/0123/meta.yaml") << "run_id: '0123'\n";
  const std::string experiment = read_text_file(run.parent_path() / "meta.yaml");
  EXPECT_EQ(export_to_mlflow(tracked(make()), store_), run);
  EXPECT_THAT(points_of(run / "metrics/loss"), SizeIs(100));
  EXPECT_EQ(meta_of(run).at("status"), "3");
  EXPECT_EQ(read_text_file(run / "artifacts/plot.png"), "picture");
  EXPECT_EQ(read_text_file(run / "tags/mlflow.note.content"), "a note");
  EXPECT_EQ(read_text_file(store_ / "0/0123/meta.yaml"), "run_id: '0123'\n");
  EXPECT_EQ(read_text_file(run.parent_path() / "meta.yaml"), experiment);
  EXPECT_THAT(names_in(run.parent_path()),
              UnorderedElementsAre("meta.yaml", run.filename().string()));
  export_to_mlflow(tracked(make({}, "b")), store_);
  EXPECT_THAT(names_in(run.parent_path()), SizeIs(3)) << "another run of the same second";
}

TEST_F(Trackers, ForeignDirectoriesAreNotTouched) {
  const TrackedRun run = tracked(make());
  fs::create_directories(directory_ / "thesis");
  directory_.write("thesis/chapter.tex", "years of work");
  EXPECT_THAT(refused(run, directory_ / "thesis"), HasSubstr("no file store of MLflow"));
  EXPECT_THAT(names_in(directory_ / "thesis"), ElementsAre("chapter.tex"));
  directory_.write("file", "");
  EXPECT_THAT(refused(run, directory_ / "file"), HasSubstr("not a directory"));
  EXPECT_THAT(refused(run, directory_ / "no/where"), HasSubstr("cannot create"));
  const fs::path there = export_to_mlflow(run, store_);
  fs::remove(there / "tags/kintsugi.run_id");
  EXPECT_THAT(refused(run, store_), HasSubstr("not written by kintsugi"));
}

// Names that MLflow refuses or that lead out of its folder, values with line ends and of any
// length.
TEST_F(Trackers, HostileNamesAndValues) {
  const fs::path directory = make();
  const std::string record =
      R"({"step":1,"time_s":1,"loss":2,"../../up":1,"..":2,"a/b":3,"a:b":4,"A_b":5,"":6,"\u0001\n":7,)"
      R"("valid":{"x/../y":{"loss":8}},"text":"=1","big":1e999,"flag":true,"none":null,")" +
      std::string(400, 'n') + R"(":9,"eval":[{"task":"t\"\\","metric":"acc","value":0.5}]})";
  directory_.write("a/metrics.jsonl", record + "\n");
  directory_.write("a/config.yaml", "long: " + std::string(7000, 'v') +
                                        "\nlines: \"a\\nb\"\nrun:\n  notify:\n    webhook: "
                                        "http://s3cret\n\"../x\": 1\n");
  const fs::path run = export_to_mlflow(tracked(directory), store_);
  const std::vector<std::string> names = names_in(run / "metrics");
  EXPECT_THAT(names, SizeIs(11));  // 9 odd names, loss and the task
  for (const std::string& name : names) {
    EXPECT_TRUE(std::regex_match(name, std::regex("[A-Za-z0-9_. -]{1,250}"))) << name;
    EXPECT_FALSE(std::regex_match(name, std::regex("\\.+"))) << name;
    EXPECT_THAT(points_of(run / "metrics" / name), SizeIs(1));
  }
  EXPECT_EQ(read_text_file(run / "params/long"), std::string(6000, 'v'));
  EXPECT_EQ(read_text_file(run / "params/lines"), "a b");
  EXPECT_EQ(read_text_file(run / "params/run.notify.webhook"), "(set)");
  EXPECT_TRUE(fs::exists(run / "params/.._x"));
  const fs::path file = export_to_wandb(tracked(directory), directory_ / "wandb");
  const WandbRead read = read_wandb(read_text_file(file));
  ASSERT_THAT(read.history, SizeIs(1));
  EXPECT_EQ(read.history[0].items.at("valid.x/../y.loss"), "8");
  EXPECT_EQ(read.history[0].items.at("eval.t\"\\.acc"), "0.5");
  EXPECT_EQ(read.history[0].items.at("text"), "\"=1\"");
  EXPECT_FALSE(read.history[0].items.contains("big")) << "JSON has no infinity";
  EXPECT_FALSE(read.history[0].items.contains("none"));
  EXPECT_EQ(read.config.at("run.notify.webhook"), "\"(set)\"");
  for (const auto& [key, value] : read.config) EXPECT_TRUE(nlohmann::json::accept(value)) << key;
}

TEST_F(Trackers, WandbHasEveryValueOfEveryStep) {
  const fs::path file = export_to_wandb(tracked(make()), directory_ / "wandb");
  EXPECT_TRUE(
      std::regex_match(fs::relative(file, directory_ / "wandb").string(),
                       std::regex("offline-run-20231114_221320-([0-9a-f]{16})/run-\\1\\.wandb")))
      << file;
  const WandbRead read = read_wandb(read_text_file(file));
  EXPECT_EQ("run-" + read.run_id + ".wandb", file.filename().string());
  EXPECT_EQ(read.name, "a");
  EXPECT_EQ(read.project, "kintsugi");
  EXPECT_EQ(read.start_s, 1700000000);
  EXPECT_EQ(read.config, (std::map<std::string, std::string>{{"optimizer.lr", "0.001"},
                                                             {"train.steps", "100"}}));
  ASSERT_EQ(read.history.size(), 100u);
  std::istringstream metrics(read_text_file(directory_ / "a/metrics.jsonl"));
  std::string line;
  for (const WandbRead::Step& step : read.history) {
    ASSERT_TRUE(std::getline(metrics, line));
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(step.step, record["step"]);
    EXPECT_EQ(nlohmann::json::parse(step.items.at("_step")), record["step"]);
    EXPECT_EQ(nlohmann::json::parse(step.items.at("_timestamp")), record["time_s"]);
    EXPECT_EQ(nlohmann::json::parse(step.items.at("_runtime")).get<double>(),
              record["time_s"].get<double>() - 1700000000);
    for (const auto& [key, value] : record.items())
      if (!value.is_null() && key != "seq" && key != "time_s") {
        EXPECT_EQ(nlohmann::json::parse(step.items.at(key)), value) << key;
      }
  }
  EXPECT_EQ(read.summary.at("loss"), "1.08");
  EXPECT_EQ(read.summary.at("_step"), "100");
  EXPECT_THAT(read.exits, ElementsAre(0));
}

TEST_F(Trackers, WandbUpdatesItsFileAndReplacesNoOther) {
  const fs::path first =
      export_to_wandb(tracked(make({.steps = 40, .state = "failed"})), directory_ / "wandb");
  EXPECT_THAT(read_wandb(read_text_file(first)).exits, ElementsAre(1));
  EXPECT_EQ(export_to_wandb(tracked(make()), directory_ / "wandb"), first);
  EXPECT_THAT(read_wandb(read_text_file(first)).history, SizeIs(100));
  EXPECT_THAT(names_in(first.parent_path()), SizeIs(1));
  std::ofstream(first) << "something else";
  EXPECT_THROW(export_to_wandb(tracked(make()), directory_ / "wandb"), UserError);
  EXPECT_EQ(read_text_file(first), "something else");
}

// A step that was done again is in the export once, with its newest values.
TEST_F(Trackers, RepeatedStepsCountOnce) {
  make();
  directory_.write("a/metrics.jsonl", synthetic_record(1) + synthetic_record(2) +
                                          "{\"step\":2,\"loss\":7}\n" + synthetic_record(3));
  const TrackedRun run = tracked(directory_ / "a");
  const std::vector<Point> losses = points_of(export_to_mlflow(run, store_) / "metrics/loss");
  ASSERT_THAT(losses, SizeIs(3));
  EXPECT_EQ(losses[1].value, 7);
  EXPECT_EQ(losses[1].milliseconds, 1700000000000) << "without a time: that of the start";
  EXPECT_THAT(read_wandb(read_text_file(export_to_wandb(run, directory_ / "wandb"))).history,
              SizeIs(3));
}

TEST_F(Trackers, MissingAndDamagedFiles) {
  fs::remove(make() / "goodput.jsonl");
  fs::remove(directory_ / "a/status.json");
  directory_.write("a/config.yaml", "train: [1\n");
  const TrackedRun run = tracked(directory_ / "a");
  EXPECT_EQ(run.facts.start_s, 1700000010.5) << "the first step";
  EXPECT_EQ(run.facts.config.size(), 0u);
  EXPECT_THAT(points_of(export_to_mlflow(run, store_) / "metrics/loss"), SizeIs(100));
  fs::remove(make() / "metrics.jsonl");
  try {
    tracked(directory_ / "a");
    FAIL() << "a run without metrics";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("metrics.jsonl"), HasSubstr("missing")));
  }
}

// Long values and many keys: frames end where blocks do, whatever the length of a record.
TEST_F(Trackers, WandbFramesOfEveryLength) {
  WandbEncoder encoder;
  std::string bytes = encoder.begin({.id = "id", .name = "n", .start_s = 1});
  for (std::size_t length = 32600; length < 32800; ++length)
    bytes += encoder.history({{"step", JsonMember::Kind::Number, "1"},
                              {"text", JsonMember::Kind::Text, std::string(length, 'x')}});
  bytes += encoder.history({{"step", JsonMember::Kind::Number, "2"},
                            {"text", JsonMember::Kind::Text, std::string(200000, 'y')}});
  const WandbRead read = read_wandb(bytes);
  ASSERT_EQ(read.history.size(), 201u);
  EXPECT_GT(read.split, 150) << "records that begin in one block and end in another";
  for (std::size_t i = 0; i < 200; ++i)
    EXPECT_EQ(read.history[i].items.at("text").size(), 32602 + i);
  EXPECT_EQ(read.history[200].items.at("text").size(), 200002u);
}

}  // namespace
}  // namespace kintsugi
