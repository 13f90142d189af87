// The files of a run for TensorBoard and Prometheus, against metrics.jsonl.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "model/objective_scalars.h"
#include "report/documents/exports.h"
#include "report/run_report.h"
#include "support/captured_log.h"
#include "support/event_file_reader.h"
#include "support/paths.h"
#include "support/prometheus_parser.h"
#include "support/rank_trainers.h"
#include "support/small_run.h"
#include "support/wandb_file_reader.h"
#include "train/records/run_log.h"
#include "train/step_metrics.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Pair;

class RunSinksTest : public testing::Test {
 protected:
  RunSinksTest() { fs::create_directories(run_); }
  std::unique_ptr<RunLog> open(SinkOptions options = {}) {
    auto log = std::make_unique<RunLog>(run_, 100, AttemptClock{now_s_, [this] { return now_s_; }},
                                        options);
    energy_ = {};
    log->goodput().start({});
    return log;
  }
  // A step that takes 2 s.
  void record(RunLog& log, StepRecord record) {
    now_s_ += 2;
    EnergyTotals& energy = energy_;
    energy[EnergyLevel::Gpu].total_j += record.energy_gpu_j.value_or(0);
    energy[EnergyLevel::Gpu].steps_j = energy[EnergyLevel::Gpu].total_j;
    energy[EnergyLevel::Node].total_j += record.energy_node_j.value_or(0);
    log.goodput().note_energy(energy);
    record.energy_since_launch.emplace();
    for (const EnergyLevel level : kEnergyLevels)
      (*record.energy_since_launch)[level] = {energy[level].total_j, 1};
    log.goodput().note_step({.step = record.step, .tokens = record.tokens, .seconds = 2});
    log.record(record);
  }
  void record(RunLog& log, std::int64_t step, double loss) {
    record(log, {.step = step, .tokens = 10 * step, .step_tokens = 10, .loss = loss});
  }
  static void end(RunLog& log) { log.status({"stopped", 75, "signal", ""}, {}, {}, NAN, ""); }

  EnergyTotals energy_;  // since the launch

  std::vector<json> metrics() const {
    std::vector<json> all;
    std::istringstream lines(content_of(run_ / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
    return all;
  }
  EventSeries series() const { return read_event_series(run_ / "tensorboard"); }
  PrometheusRead prometheus() const {
    return PrometheusParser::parse(content_of(run_ / "metrics.prom"));
  }
  // The files of W&B, by the names of their directories.
  std::map<std::string, WandbRead> wandb() const {
    std::map<std::string, WandbRead> files;
    if (!fs::exists(run_ / "wandb")) return files;
    for (const auto& entry : fs::recursive_directory_iterator(run_ / "wandb"))
      if (entry.is_regular_file())
        files[entry.path().parent_path().filename().string()] =
            read_wandb(content_of(entry.path()));
    return files;
  }
  double value(const std::string& metric, const std::string& labels = "") const {
    const std::string run = "run=" + run_.string();
    // Of the labels in use, only "set" sorts after "run".
    if (labels.starts_with("set=")) return prometheus().at(metric, run + "," + labels);
    return prometheus().at(metric, labels.empty() ? run : labels + "," + run);
  }

  TemporaryDirectory directory_;
  fs::path run_ = directory_ / "run";
  double now_s_ = 1700000000;
};

// Every number of metrics.jsonl that has a tag is in the event file, as fp32.
TEST_F(RunSinksTest, ARunWritesTheSameValuesToAllFiles) {
  const CapturedLog log;
  const std::string corpus = directory_.write("corpus.txt", small_corpus(200));
  const std::string yaml = small_config(corpus, run_, "eval_every: 4, checkpoint_every: 4");
  train_on_ranks(2, yaml, {"train.steps=6", "batch.micro=1"});
  train_on_ranks(2, yaml, {"train.steps=10", "batch.micro=1"});
  const EventSeries shown = series();
  std::size_t compared = 0;
  for (const json& line : metrics())
    for (const StepMetric& metric : step_metrics()) {
      if (metric.tag.empty() || metric.json.empty()) continue;
      const bool known = line.contains(metric.json) && !line[metric.json].is_null();
      const std::int64_t step = line["step"];
      const auto points = shown.find(metric.tag);
      ASSERT_EQ(known, points != shown.end() && points->second.contains(step))
          << metric.tag << " at step " << step;
      if (!known) continue;
      EXPECT_EQ(points->second.at(step), line[metric.json].get<float>()) << metric.tag;
      ++compared;
    }
  EXPECT_GT(compared, 10 * 12u);
  EXPECT_EQ(shown.at("train/loss").size(), 10u);
  EXPECT_EQ(shown.at("valid/loss").size(), 4u);  // steps 4, 6, 8, 10
  const json last = metrics().back();
  EXPECT_EQ(value("kintsugi_step_total"), 10);
  EXPECT_EQ(value("kintsugi_tokens_total"), last["tokens"].get<double>());
  EXPECT_EQ(value("kintsugi_loss"), last["loss"].get<double>());
  EXPECT_EQ(value("kintsugi_step_seconds"), last["step_time_s"].get<double>());
  EXPECT_EQ(value("kintsugi_valid_loss"), last["valid_loss"].get<double>());
  EXPECT_EQ(value("kintsugi_restart_total", "cause=finished"), 1);
  EXPECT_EQ(value("kintsugi_running"), 0);
  EXPECT_EQ(value("kintsugi_planned_steps"), 10);
  EXPECT_GT(value("kintsugi_checkpoint_seconds"), 0);
  const json seconds = json::parse(content_of(run_ / "status.json"))["goodput"];
  for (const char* cause : {"recomputed", "checkpoint", "validation", "startup", "down"})
    EXPECT_NEAR(value("kintsugi_lost_seconds_total", std::string("cause=") + cause),
                seconds[std::string(cause) + "_s"].get<double>(), 1e-9)
        << cause;
  EXPECT_NEAR(value("kintsugi_productive_seconds_total"), seconds["productive_s"].get<double>(),
              1e-9);
  EXPECT_THAT(report_text(read_run(run_)),
              HasSubstr("tensorboard --logdir " + (run_ / "tensorboard").string()));
}

TEST_F(RunSinksTest, KeysTurnThemOff) {
  const CapturedLog log;
  const std::string corpus = directory_.write("corpus.txt", small_corpus(200));
  train_on_ranks(1, small_config(corpus, run_, "steps: 2, save: false"),
                 {"run.tensorboard=false", "run.prometheus=false"});
  EXPECT_EQ(metrics().size(), 2u);
  EXPECT_FALSE(fs::exists(run_ / "tensorboard"));
  EXPECT_FALSE(fs::exists(run_ / "metrics.prom"));
}

TEST_F(RunSinksTest, CountersContinueAfterAResumeFromAnEarlierStep) {
  auto log = open();
  for (std::int64_t step = 1; step <= 6; ++step)
    record(*log, {.step = step,
                  .tokens = 10 * step,
                  .step_tokens = 10,
                  .loss = 3,
                  .energy_j = 100,
                  .energy_gpu_j = 80,
                  .energy_node_j = 100,
                  .energy_scope = "node"});
  log.reset();  // killed
  now_s_ += 30;
  log = open();
  for (std::int64_t step = 4; step <= 5; ++step)
    record(*log, {.step = step,
                  .tokens = 10 * step,
                  .step_tokens = 10,
                  .loss = 2,
                  .energy_j = 50,
                  .energy_gpu_j = 50,
                  .power_w = 25,
                  .energy_scope = "gpu"});
  end(*log);
  EXPECT_EQ(value("kintsugi_step_total"), 6);
  EXPECT_EQ(value("kintsugi_tokens_total"), 60);
  EXPECT_EQ(value("kintsugi_energy_joules_total", "level=gpu"), 6 * 80 + 2 * 50);
  EXPECT_EQ(value("kintsugi_energy_joules_total", "level=node"), 6 * 100);
  EXPECT_EQ(value("kintsugi_power_watts"), 25);
  EXPECT_EQ(value("kintsugi_restart_total", "cause=lost"), 1);
  EXPECT_EQ(value("kintsugi_lost_seconds_total", "cause=recomputed"), 4);
  EXPECT_THAT(
      series()["energy/j_per_token"],
      ElementsAre(Pair(1, 10.0f), Pair(2, 10.0f), Pair(3, 10.0f), Pair(4, 5.0f), Pair(5, 5.0f)));
  const json first = metrics().front();
  EXPECT_EQ(first["energy_scope"], "node");
  EXPECT_EQ(first["energy_gpu_j"], 80);
  EXPECT_TRUE(first["power_w"].is_null());
}

TEST_F(RunSinksTest, ALossThatIsNotANumber) {
  const auto log = open();
  record(*log, 1, NAN);
  end(*log);
  EXPECT_TRUE(metrics().at(0)["loss"].is_null());
  EXPECT_TRUE(std::isnan(series().at("train/loss").at(1)));
  EXPECT_TRUE(std::isnan(value("kintsugi_loss")));
}

TEST_F(RunSinksTest, HostileNamesOfValidationSets) {
  const auto log = open();
  const std::string name = "fi\"\\\n\xff";
  record(*log, {.step = 1,
                .tokens = 10,
                .loss = 3,
                .stage = "\"tokens\":9e9,\n",
                .valid_loss = 2,
                .valid = {{name, 1.5, 2.5}, {"tokens", 2.5, {}}}});
  record(*log, 2, 2.5);  // without a validation
  end(*log);
  EXPECT_EQ(series().at("valid/loss/fi\"\\ \\xff").at(1), 1.5f);
  EXPECT_EQ(series().at("valid/bits_per_byte/fi\"\\ \\xff").at(1), 2.5f);
  EXPECT_FALSE(series().contains("valid/bits_per_byte/tokens"));
  EXPECT_EQ(value("kintsugi_valid_set_loss", "set=fi\"\\\n\\xff"), 1.5);
  EXPECT_EQ(value("kintsugi_valid_set_loss", "set=tokens"), 2.5);
  EXPECT_EQ(value("kintsugi_valid_loss"), 2) << "that of the last validation";
  open()->status({"stopped", 75, "signal", ""}, {}, {}, NAN, "");
  EXPECT_EQ(value("kintsugi_tokens_total"), 20) << "not the text in the name of the stage";
}

TEST_F(RunSinksTest, ResultsOfTasks) {
  const auto log = open();
  record(*log, {.step = 1,
                .loss = 3,
                .tasks = {{"arc\"", "acc", 0.25, 0.125}, {"lambada", "perplexity", 8.5, {}}}});
  record(*log, 2, 2.5);  // without an evaluation
  end(*log);
  const auto eval = metrics().at(0)["eval"];
  ASSERT_EQ(eval.size(), 2u);
  EXPECT_EQ(eval[0]["task"], "arc\"");
  EXPECT_EQ(eval[0]["metric"], "acc");
  EXPECT_EQ(eval[0]["value"], 0.25);
  EXPECT_EQ(eval[0]["stderr"], 0.125);
  EXPECT_TRUE(eval[1]["stderr"].is_null());
  EXPECT_FALSE(metrics().at(1).contains("eval"));
  EXPECT_EQ(series().at("eval/lambada/perplexity").at(1), 8.5f);
  const std::string labels = "metric=acc,run=" + run_.string() + ",task=arc\"";
  EXPECT_EQ(prometheus().at("kintsugi_eval", labels), 0.25) << "of the last evaluation";
  EXPECT_EQ(prometheus().at("kintsugi_eval_stderr", labels), 0.125);
  EXPECT_EQ(open()->evaluated(), (std::set<std::int64_t>{1}));
}

TEST_F(RunSinksTest, MetricsPromIsReplacedAtIntervals) {
  const auto log = open();
  record(*log, 1, 3);
  EXPECT_EQ(value("kintsugi_step_total"), 1);
  EXPECT_EQ(value("kintsugi_running"), 1);
  record(*log, 2, 3);  // 2 s later
  record(*log, 3, 3);
  EXPECT_EQ(value("kintsugi_step_total"), 1);
  record(*log, 4, 3);
  EXPECT_EQ(value("kintsugi_step_total"), 4);
  EXPECT_EQ(value("kintsugi_updated_timestamp_seconds"), 1700000008);
  record(*log, 5, 3);
  log->fail({.kind = FailureKind::Lost, .culprits = {{3, "n7"}}, .text = "lost"});
  EXPECT_EQ(value("kintsugi_running"), 1) << "before any status there is nothing to fail";
  end(*log);
  EXPECT_EQ(value("kintsugi_step_total"), 5);
  EXPECT_EQ(value("kintsugi_running"), 0);
  EXPECT_FALSE(fs::exists(run_ / "metrics.prom.tmp"));
}

TEST_F(RunSinksTest, FailedWritesAreOneWarningEachAndTheRunGoesOn) {
  directory_.write("run/tensorboard", "in the way");
  fs::create_directories(run_ / "metrics.prom/in the way");
  const CapturedLog captured;
  const auto log = open();
  for (std::int64_t step = 1; step <= 20; ++step) record(*log, step, 3);
  end(*log);
  EXPECT_EQ(metrics().size(), 20u);
  EXPECT_THAT(captured.warnings(), MatchesRegex("[^\n]*but points may be missing in TensorBoard\n"
                                                "[^\n]*but metrics.prom is out of date\n"));
  EXPECT_FALSE(fs::exists(run_ / "metrics.prom.tmp"));
}

// Two processes, two files of one run of W&B, with the values of metrics.jsonl.
TEST_F(RunSinksTest, WandbFilesOfARunAndItsResume) {
  const CapturedLog log;
  const std::string corpus = directory_.write("corpus.txt", small_corpus(200));
  const std::string yaml = small_config(corpus, run_, "eval_every: 4, checkpoint_every: 4");
  train_on_ranks(2, yaml, {"train.steps=6", "batch.micro=1", "run.wandb=true"});
  train_on_ranks(2, yaml, {"train.steps=10", "batch.micro=1", "run.wandb=true"});
  const auto files = wandb();
  ASSERT_EQ(files.size(), 2u);
  std::map<std::int64_t, std::map<std::string, std::string>> steps;
  std::string id;
  for (const auto& [folder, file] : files) {
    EXPECT_THAT(folder, MatchesRegex("offline-run-[0-9]{8}_[0-9]{6}-" + file.run_id));
    EXPECT_EQ(file.name, "run");
    EXPECT_EQ(file.config.at("run.wandb"), "true");
    EXPECT_THAT(file.exits, ElementsAre(0));
    EXPECT_TRUE(id.empty() || id == file.run_id) << "the same run";
    id = file.run_id;
    for (const WandbRead::Step& step : file.history) steps[step.step] = step.items;
    EXPECT_EQ(file.summary.at("loss"), file.history.back().items.at("loss"));
  }
  std::istringstream goodput(content_of(run_ / "goodput.jsonl"));
  std::string launch;
  std::getline(goodput, launch);
  EXPECT_EQ(id, run_id(run_, json::parse(launch)["launched_s"]));
  ASSERT_EQ(steps.size(), 10u);
  for (const json& line : metrics())
    for (const auto& [key, value] : line.items())
      if (value.is_number() && key != "seq" && key != "time_s") {
        EXPECT_EQ(json::parse(steps[line["step"]].at(key)), value) << key;
      }
  SummaryReader reader(resolved(run_));
  reader.refresh(this_machine());
  const fs::path exported = export_to_wandb(tracked_run(reader), directory_ / "exported");
  EXPECT_EQ(read_wandb(content_of(exported)).run_id, id);
}

TEST_F(RunSinksTest, AKilledRunLeavesAReadableWandbFile) {
  auto log = open({.wandb = true});
  for (std::int64_t step = 1; step <= 6; ++step) record(*log, step, 3);
  // Written at 2, 8, … s: a kill now would leave these.
  EXPECT_EQ(wandb().begin()->second.history.size(), 4u);
  EXPECT_EQ(wandb().begin()->second.summary.at("_step"), "4");
  log.reset();
  ASSERT_EQ(wandb().size(), 1u);
  EXPECT_EQ(wandb().begin()->second.history.size(), 6u);
  EXPECT_TRUE(wandb().begin()->second.exits.empty()) << "W&B takes the run as crashed";
  now_s_ -= 12;  // the second of the first file
  log = open({.wandb = true});
  record(*log, 5, 2);
  end(*log);
  ASSERT_EQ(wandb().size(), 2u);
  EXPECT_EQ(wandb().begin()->second.run_id, wandb().rbegin()->second.run_id);
  EXPECT_THAT(wandb().rbegin()->second.exits, ElementsAre(75));
}

TEST_F(RunSinksTest, WandbRecordsWaitUntilTheyCanBeWritten) {
  directory_.write("run/wandb", "in the way");
  const CapturedLog captured;
  const auto log = open({.wandb = true});
  for (std::int64_t step = 1; step <= 20; ++step) record(*log, step, 3);
  EXPECT_THAT(captured.warnings(), MatchesRegex("[^\n]*but points may be missing in W&B\n"));
  fs::remove(run_ / "wandb");
  for (std::int64_t step = 21; step <= 24; ++step) record(*log, step, 3);
  EXPECT_EQ(metrics().size(), 24u);
  ASSERT_EQ(wandb().size(), 1u);
  EXPECT_GE(wandb().begin()->second.history.size(), 21u) << "with those that waited";
  fs::remove_all(run_ / "wandb");  // by a user: a new file begins
  record(*log, 25, 3);
  end(*log);
  ASSERT_EQ(wandb().size(), 1u);
  EXPECT_EQ(wandb().begin()->second.history.back().step, 25);
}

// Nothing is written into another run directory that has the name of this one now.
TEST_F(RunSinksTest, NoWandbFileInADirectoryThatTookThePlace) {
  const auto log = open({.wandb = true});
  record(*log, 1, 3);
  fs::rename(run_, directory_ / "moved");
  fs::create_directories(run_);
  record(*log, 2, 3);
  now_s_ += 20;
  record(*log, 3, 3);
  EXPECT_FALSE(fs::exists(run_ / "wandb"));
}

TEST_F(RunSinksTest, DamagedMetricsDoNotPreventAResume) {
  directory_.write("run/metrics.jsonl",
                   "{\"step\":3,\"tokens\":30}\n\"tokens\":\n{\"tokens\":\"x\"}\n\"tokens\":-5\n"
                   "{\"tokens\":1e999}\n\xff\n{\"tokens\":40,\"step\":nan}\n");
  const auto log = open();
  record(*log, 1, 3);
  EXPECT_EQ(value("kintsugi_tokens_total"), 40);
  EXPECT_EQ(value("kintsugi_step_total"), 3);
}

TEST(StepMetrics, TheTableIsConsistent) {
  std::set<std::string> keys, tags, samples, names;
  std::string last;
  std::map<std::string, std::string> help;
  for (const StepMetric& metric : step_metrics()) {
    const auto& [name, label, value, combine] = metric.prometheus;
    EXPECT_TRUE(!metric.json.empty() || !metric.tag.empty());
    if (!metric.json.empty()) {
      EXPECT_TRUE(keys.insert(metric.json).second) << metric.json;
    }
    if (!metric.tag.empty()) {
      EXPECT_TRUE(tags.insert(metric.tag).second) << metric.tag;
    }
    // Counters are continued from metrics.jsonl.
    EXPECT_EQ(name.ends_with("_total"), combine != StepMetric::Combine::Last) << name;
    if (combine != StepMetric::Combine::Last) {
      EXPECT_FALSE(metric.json.empty());
    }
    if (name.empty()) continue;
    EXPECT_THAT(name, MatchesRegex("kintsugi_[a-z0-9_]+"));
    EXPECT_TRUE(samples.insert(name + label + value).second) << name;
    EXPECT_EQ(help.emplace(name, metric.help).first->second, metric.help) << name;
    if (name != last) {
      EXPECT_TRUE(names.insert(name).second) << name << " must be neighbours";
    }
    last = name;
  }
}

// A new auxiliary loss declares itself, and has a value in all files.
TEST_F(RunSinksTest, ADeclaredScalarIsInAllFiles) {
  StepScalars scalars;
  const std::size_t own = scalars.add({.names = {.json = "balance_loss",
                                                 .tag = "train/balance_loss",
                                                 .prometheus = {.name = "kintsugi_balance_loss"},
                                                 .help = "Load of the experts."},
                                       .valid = {.json = "valid_balance_loss",
                                                 .tag = "valid/balance_loss",
                                                 .prometheus = {.name = "kintsugi_valid_balance"},
                                                 .help = "The same of a validation."},
                                       .factor = 0.5});
  const std::size_t other = scalars.add({.names = {.json = "load", .tag = "train/load"}});
  scalars.add_difference({.names = {.json = "gap", .tag = "train/gap"}}, own, other);
  ASSERT_EQ(scalars.sums(), 3u) << "with that of the loss";
  const auto log = open();
  for (const std::int64_t step : {1, 2}) {
    const double sums[] = {100, 12.0 * static_cast<double>(step), 4};
    record(*log, {.step = step, .loss = 25, .scalars = scalars.values(sums, 4)});
  }
  const double held_out[] = {100, 40, 8};
  ScalarValues valid = scalars.values(held_out, 4);
  valid.resize(1);
  record(*log, {.step = 3, .loss = 25, .valid_scalars = valid});
  end(*log);
  EXPECT_EQ(metrics()[1]["balance_loss"], 0.5 * 24 / 4);
  EXPECT_EQ(metrics()[1]["load"], 1);
  EXPECT_EQ(metrics()[1]["gap"], 24.0 / 4 - 1);
  EXPECT_FALSE(metrics()[1].contains("valid_balance_loss"));
  EXPECT_EQ(metrics()[2]["valid_balance_loss"], 5);
  EXPECT_EQ(series().at("train/balance_loss").at(1), 1.5);
  EXPECT_EQ(series().at("valid/balance_loss").at(3), 5);
  EXPECT_EQ(value("kintsugi_balance_loss"), 3) << "that of the last step with one";
  EXPECT_EQ(value("kintsugi_valid_balance"), 5);
}

TEST_F(RunSinksTest, TheDocumentationListsEveryName) {
  const std::string keys = content_of(fs::path(source_directory()) / "docs/configuration.md");
  const std::string page = content_of(fs::path(source_directory()) / "docs/metrics.md");
  std::vector<MetricNames> all(step_metrics().begin(), step_metrics().end());
  const double sums[8] = {};
  for (const StepScalars& scalars : {objective_scalars(1, false), objective_scalars(0, true)})
    for (const ScalarValue& one : scalars.values(sums, 1)) {
      all.push_back(one.of->names);
      all.push_back(one.of->valid);
    }
  for (const MetricNames& metric : all) {
    if (!metric.json.empty()) {
      EXPECT_THAT(keys, HasSubstr("`" + metric.json + "`"));
    }
    if (!metric.tag.empty()) {
      EXPECT_THAT(page, HasSubstr("`" + metric.tag + "`"));
    }
    if (!metric.prometheus.name.empty()) {
      EXPECT_THAT(page, HasSubstr("`" + metric.prometheus.name));
    }
  }
  const auto log = open();
  record(*log, {.step = 1, .loss = 3, .valid = {{"a", 1, 1}, {"b", 1, 1}}});
  log->goodput().note_save(1);
  end(*log);
  const PrometheusRead read = prometheus();
  for (const auto& [name, type] : read.types) EXPECT_THAT(page, HasSubstr("`" + name));
}

}  // namespace
}  // namespace kintsugi
