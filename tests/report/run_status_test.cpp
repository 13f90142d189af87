#include "report/runs/run_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

class CollectedRuns : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((directory_.path() / name).parent_path());
    directory_.write(name, text);
  }
  TemporaryDirectory directory_;
};

TEST_F(CollectedRuns, OneLineForEach) {
  write("b/status.json",
        R"({"state": "finished", "step": 3, "total_steps": 3, "loss": 2.5, "valid_loss": 2.75})");
  write(
      "b/metrics.jsonl",
      "{\"loss\": 4, \"tokens\": 100, \"tokens_per_s\": 10, \"mfu\": 0.5, \"energy_j\": 7}\n"
      "{\"loss\": 3, \"tokens\": 200, \"tokens_per_s\": 30, \"mfu\": 0.25, \"energy_j\": 50}\n"
      "{\"loss\": 2.5, \"tokens\": 300, \"tokens_per_s\": 20, \"mfu\": 0.75, \"energy_j\": 150}\n");
  write("b/launch/exit_code", "0\n");
  write("a/status.json", R"({"state": "failed", "step": 1, "total_steps": 3, "message": "x, y"})");
  write("a/launch/exit_code", "1\n");
  write("c/launch/job.json", "{}");
  write("d/notes.txt", "no run");
  const auto runs = collect_runs(directory_.path());
  // J/token: the first of the lines has no predecessor, so (50 + 150) J / 200 tokens.
  EXPECT_EQ(table_of(runs).csv(),
            "run,state,step,steps,loss,valid_loss,tokens_s,mfu,J/token,reason\n"
            "a,failed,1,3,,,,,,\"x, y, exit code 1\"\n"
            "b,finished,3,3,2.5000,2.7500,20,0.5000,1,\n"
            "c,not started,0,0,,,,,,\n");
  EXPECT_THAT(table_of(runs).markdown(),
              HasSubstr("| b | finished | 3 | 3 | 2.5000 | 2.7500 | 20 |"));
  EXPECT_THAT(table_of(runs).text(), HasSubstr("a    failed"));
}

TEST_F(CollectedRuns, MetricsOfARunThatIsStillWritten) {
  write("r/status.json", "{\"state\": \"running\", \"st");
  write("r/metrics.jsonl",
        "{\"loss\": 4, \"tokens_per_s\": 10, \"energy_j\": null}\nnonsense\n[1]\n"
        "{\"loss\": \"NaN\", \"tokens_per_s\": null}\n{\"loss\": 3");
  const RunStatus status = read_run_status(directory_.path() / "r");
  EXPECT_EQ(status.state, "");
  EXPECT_EQ(status.loss, 4);
  EXPECT_EQ(status.tokens_per_s, 10);
  EXPECT_FALSE(status.joule_per_token);
}

TEST_F(CollectedRuns, LongMetricsAreReadFromTheirEnd) {
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += "{\"loss\": " + std::to_string(i) + ", \"tokens_per_s\": " + std::to_string(i) + "}\n";
  write("r/metrics.jsonl", text);
  const RunStatus status = read_run_status(directory_.path() / "r");
  EXPECT_EQ(status.loss, 19999);
  EXPECT_GT(status.tokens_per_s.value(), 10000);
}

TEST_F(CollectedRuns, NothingToCollect) {
  EXPECT_THAT(user_error_of([&] { collect_runs(directory_.path()); }),
              HasSubstr("no run directories"));
  EXPECT_THAT(user_error_of([&] { collect_runs(directory_.path() / "x"); }),
              HasSubstr("cannot read"));
}

}  // namespace
}  // namespace kintsugi
