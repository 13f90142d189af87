#include "report/documents/markdown.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "report/runs/run_index.h"
#include "report/runs/run_view.h"
#include "support/synthetic_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Markdown : public testing::Test {
 protected:
  MarkdownReport read() {
    index_ = std::make_unique<RunIndex>(std::vector<std::filesystem::path>{directory_.path()});
    index_->search();
    SeriesCache cache;
    MarkdownReport report{.written = "today"};
    std::vector<const SummaryReader*> readers;
    std::vector<std::int64_t> last_steps;
    for (const auto& [id, run] : index_->runs()) {
      readers.push_back(&run);
      last_steps.push_back(static_cast<std::int64_t>(run.summary().step.value_or(0)));
    }
    report.table_steps = loss_table_steps(last_steps);
    report.differences = compare_json(readers)["configuration"];
    for (const SummaryReader* run : readers) {
      report.runs.push_back({.name = run->summary().id, .view = run_json(*run, cache)});
      cache.with(run->directory(), [&](const StepSeries& series) {
        report.runs.back().figures = step_figures(series, report.table_steps);
      });
    }
    return report;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<RunIndex> index_;
};

TEST(LossTable, OneTwoFiveOfEachDecade) {
  EXPECT_THAT(loss_table_steps({100}), ElementsAre(1, 2, 5, 10, 20, 50, 100));
  EXPECT_THAT(loss_table_steps({7, 30}), ElementsAre(1, 2, 5, 7, 10, 20, 30));
  EXPECT_THAT(loss_table_steps({1}), ElementsAre(1));
  EXPECT_THAT(loss_table_steps({0}), ElementsAre());
  EXPECT_THAT(loss_table_steps({std::numeric_limits<std::int64_t>::max()}), ElementsAre());
  EXPECT_EQ(loss_table_steps({1'000'000'000'000'000}).size(), 46u);
}

// Every number is a closed form of SyntheticRun: see there.
TEST_F(Markdown, OneRun) {
  write_synthetic_run(directory_ / "a", {});
  EXPECT_EQ(
      to_markdown(read()),
      "# Report of a\n"
      "\n"
      "Written today.\n"
      "\n"
      "## Summary\n"
      "\n"
      "| run | state | model | ranks | step | tokens | loss | validation loss | goodput | attempts "
      "|\n"
      "| --- | --- | --- | --: | --: | --: | --: | --: | --: | --: |\n"
      "| a | finished |  | – | 100 of 100 | 100000 | 1.0800 | 2.0800 | 71.4 % | 1 |\n"
      "\n"
      "## Loss\n"
      "\n"
      "The loss of the step, and the last validation since the row above, in nats per token.\n"
      "\n"
      "| step | loss | validation |\n"
      "| --: | --: | --: |\n"
      "| 1 | 9.0000 | – |\n"
      "| 2 | 5.0000 | – |\n"
      "| 5 | 2.6000 | – |\n"
      "| 10 | 1.8000 | 2.8000 |\n"
      "| 20 | 1.4000 | 2.4000 |\n"
      "| 50 | 1.1600 | 2.1600 |\n"
      "| 100 | 1.0800 | 2.0800 |\n"
      "\n"
      "## Speed\n"
      "\n"
      "Medians over all steps; p10 and p90 are the 10th and 90th percentile. Data wait is its part "
      "of the time of all steps.\n"
      "\n"
      "| run | steps | tokens/s p10 | median | p90 | MFU, causal attention | MFU, full attention | "
      "s/step | data wait |\n"
      "| --- | --: | --: | --: | --: | --: | --: | --: | --: |\n"
      "| a | 100 | 110.9 | 150.5 | 190.1 | 50.00 % | 62.50 % | 0.5 | 25.00 % |\n"
      "\n"
      "## Goodput\n"
      "\n"
      "What the time of the run was used for, over all attempts.\n"
      "\n"
      "| category | a | share |\n"
      "| --- | --: | --: |\n"
      "| productive | 50 s | 71.4 % |\n"
      "| checkpoint | 5 s | 7.1 % |\n"
      "| validation | 5 s | 7.1 % |\n"
      "| startup | 10 s | 14.3 % |\n"
      "| total | 1 min 10 s | 100.0 % |\n"
      "\n"
      "## Attempts\n"
      "\n"
      "| run | attempt | launched | duration | steps | nodes | end |\n"
      "| --- | --: | --- | --: | --- | --: | --- |\n"
      "| a | 1 | 2023-11-14T22:13:20Z | 1 min 10 s | 0 to 100 | 2 | finished (exit code 0) |\n");
}

TEST_F(Markdown, SeveralRunsAndWhatDiffers) {
  write_synthetic_run(directory_ / "a", {});
  write_synthetic_run(directory_ / "b", {.steps = 30,
                                         .total_steps = 100,
                                         .state = "failed",
                                         .message = "a|b <img src=x onerror=alert(1)>",
                                         .lr = "0.0003"});
  const std::string text = to_markdown(read());
  EXPECT_THAT(text, AllOf(HasSubstr("# Report of 2 runs\n"),
                          HasSubstr("| key | a | b |\n| --- | --- | --- |\n"
                                    "| optimizer.lr | 0.001 | 0.0003 |\n\n"),
                          HasSubstr("- b: a\\|b &lt;img src=x onerror=alert(1)&gt;\n"),
                          Not(HasSubstr("<img"))));
  // The last step of the shorter run is a row of its own.
  EXPECT_THAT(text, AllOf(HasSubstr("| 20 | 1.4000 | 2.4000 | 1.4000 | 2.4000 |\n"),
                          HasSubstr("| 30 | 1.2667 | 2.2667 | 1.2667 | 2.2667 |\n"),
                          HasSubstr("| 50 | 1.1600 | 2.1600 | – | – |\n")));
  EXPECT_THAT(text, HasSubstr("| b | failed |"));
}

TEST_F(Markdown, EqualConfigurationsAreSaidToBeEqual) {
  write_synthetic_run(directory_ / "a", {});
  write_synthetic_run(directory_ / "b", {});
  EXPECT_THAT(to_markdown(read()), HasSubstr("The configurations are equal."));
}

TEST_F(Markdown, LevelsOfEnergyAreKeptApart) {
  write_synthetic_run(directory_ / "a", {});
  directory_.write(
      "a/energy.json",
      R"({"levels":{"gpu":{"joules":7.2e6,"joules_per_token":72,"mean_w_per_node":500,)"
      R"("source":"nvml","kind":"counter","time_measured":0.5,"reason":null},)"
      R"("cpu":{"joules":null,"source":null,"kind":null,"time_measured":0,)"
      R"("reason":"rapl: Permission denied"}},)"
      R"("facility":{"joules":null},)"
      R"("co2e":{"of":"GPUs","location_based":{"kg":1.5},"market_based":{"kg":null}}})");
  EXPECT_THAT(
      to_markdown(read()),
      AllOf(HasSubstr("| a | gpu | 2 kWh | 72 | 500.0 | nvml counter | 50.0 % |  |\n"),
            HasSubstr("| a | cpu | not measured | – | – | – | – | rapl: Permission denied |"),
            HasSubstr("- a: CO2e 1.5 kg (location-based), for the GPUs\n")));
}

TEST_F(Markdown, TheLeastEvenLayersAreListed) {
  write_synthetic_run(directory_ / "a", {});
  const auto layer = [](int number, double load) {
    return fmt::format(R"({{"layer":{},"max_load":{},"entropy":0.5,"idle":1,"choices":[1,2]}})",
                       number, load);
  };
  std::ofstream file(directory_ / "a/experts.jsonl");
  for (const int step : {10, 20}) {
    file << fmt::format(R"({{"step":{},"layers":[)", step);
    for (int number = 0; number < 7; ++number)
      file << (number > 0 ? "," : "") << layer(number, 1 + number * step / 100.0);
    file << "]}\n";
  }
  file << R"({"step":30,"layers":[)" << layer(0, 1.25);
  for (int number = 1; number < 7; ++number) file << "," << layer(number, 1 + 0.01 * number);
  file << "]}\n";
  file.close();
  EXPECT_THAT(
      to_markdown(read()),
      HasSubstr("| run | layer | step | busiest expert | entropy | idle | experts | busiest "
                "so far |\n"
                "| --- | --: | --: | --: | --: | --: | --: | --: |\n"
                "| a | 0 | 30 | 1.25 | 0.500 | 1 | 2 | 1.25 |\n"
                "| a | 6 | 30 | 1.06 | 0.500 | 1 | 2 | 2.20 |\n"
                "| a | 5 | 30 | 1.05 | 0.500 | 1 | 2 | 2.00 |\n"
                "| a | 4 | 30 | 1.04 | 0.500 | 1 | 2 | 1.80 |\n"
                "| a | 3 | 30 | 1.03 | 0.500 | 1 | 2 | 1.60 |\n"
                "\n"));
}

TEST_F(Markdown, EventsAreListed) {
  write_synthetic_run(directory_ / "a", {});
  directory_.write("a/events.jsonl",
                   "{\"time_s\":1700000000,\"event\":\"spike\",\"step\":7,\"message\":\"x|y\"}\n"
                   "{\"event\":[1]}\n");
  EXPECT_THAT(to_markdown(read()),
              AllOf(HasSubstr("| a | 2023-11-14T22:13:20Z | spike | 7 | x\\|y |\n"),
                    HasSubstr("| a | – |  | – |  |\n")));
}

// A run that has just begun.
TEST_F(Markdown, ARunWithoutSteps) {
  std::filesystem::create_directories(directory_ / "a");
  directory_.write("a/status.json", R"({"state":"running","step":0,"total_steps":5})");
  const std::string text = to_markdown(read());
  EXPECT_THAT(text, AllOf(HasSubstr("| a | running |  | – | 0 of 5 | – | – | – | – | – |"),
                          Not(HasSubstr("## Loss")), Not(HasSubstr("## Speed"))));
}

}  // namespace
}  // namespace kintsugi
