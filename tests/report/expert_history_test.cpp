#include "report/runs/expert_history.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/run_report.h"
#include "support/synthetic_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;

// Layers 1 and 4; the counts of layer 4 are even but for the first expert, which has `first`.
std::string record(double step, double first = 6, int experts = 3) {
  std::string even = "2", other = fmt::format("{}", first);
  for (int i = 1; i < experts; ++i) even += ",2", other += ",3.0";
  return fmt::format(
      R"({{"step":{},"layers":[{{"layer":1,"max_load":1,"entropy":1,"idle":0,"choices":[{}]}},)"
      R"({{"layer":4,"max_load":1.5,"entropy":0.9463946303571861,"idle":1,"choices":[{}]}}]}})"
      "\n",
      step, even, other);
}

class ExpertHistories : public testing::Test {
 protected:
  ExpertHistory read(const std::string& text,
                     std::size_t most_cells = ExpertHistory::kMostCells) const {
    std::ofstream(directory_ / "experts.jsonl", std::ios::binary) << text;
    return read_expert_history(directory_ / "experts.jsonl", most_cells);
  }
  TemporaryDirectory directory_;
};

TEST_F(ExpertHistories, HaveTheLoadsOfEachStep) {
  const ExpertHistory history = read(record(10) + record(20, 0) + record(30, 12));
  EXPECT_THAT(history.steps, ElementsAre(10, 20, 30));
  ASSERT_EQ(history.layers.size(), 2u);
  EXPECT_EQ(history.experts, 3);
  EXPECT_EQ(history.layers[1].number, 4);
  EXPECT_THAT(history.layers[1].loads, ElementsAre(1.5, 0.75, 0.75, 0, 1.5, 1.5, 2, 0.5, 0.5));
  EXPECT_THAT(history.layers[1].entropy, ElementsAre(0.9464, 0.9464, 0.9464));
  EXPECT_FALSE(history.thinned);
  EXPECT_EQ(history.problem, "");
  EXPECT_EQ(worst_layers(history, 1).front()->number, 4);
}

// What docs/dashboard.md says of the digits, decoded here another way.
TEST_F(ExpertHistories, AreWrittenWithThreeDigits) {
  const nlohmann::json json =
      nlohmann::json::parse(to_json(read(record(10, 0) + record(20, 100))).dump());
  EXPECT_EQ(json["experts"], 3);
  EXPECT_EQ(json["worst"], nlohmann::json({1, 0}));
  const std::string text = json["layers"][1]["loads"];
  ASSERT_EQ(text.size(), 2u * 2 * 3);
  const auto load = [&](std::size_t cell) {
    int code = 0;
    for (const char c : text.substr(2 * cell, 2))
      code = 64 * code + (c == '/'   ? 63
                          : c == '+' ? 62
                          : c <= '9' ? 52 + c - '0'
                          : c <= 'Z' ? c - 'A'
                                     : 26 + c - 'a');
    return code == 0 ? 0 : std::exp2((code - 1) / 256.0 - 7);
  };
  EXPECT_EQ(load(0), 0);
  EXPECT_NEAR(load(1), 1.5, 0.005);
  EXPECT_NEAR(load(3), 300 / 106.0, 0.01);
  EXPECT_NEAR(load(4), 9 / 106.0, 0.0003);
  EXPECT_TRUE(to_json(ExpertHistory()).is_null());
}

TEST_F(ExpertHistories, TakeTheNewestOfRepeatedSteps) {
  const ExpertHistory history =
      read(record(10) + record(20) + record(30) + record(20, 0) + record(40));
  EXPECT_THAT(history.steps, ElementsAre(10, 20, 40));
  EXPECT_EQ(history.layers[1].loads[3], 0);
}

TEST_F(ExpertHistories, LeaveOutWhatIsDamaged) {
  const std::string other_model = record(20, 6, 2);
  const ExpertHistory history =
      read(record(10) +
           "nonsense\n{\"step\":15}\n{\"step\":16,\"layers\":[{\"layer\":1,\"choices\":"
           "[1,-1,2]}]}\n{\"step\":17,\"layers\":[{\"choices\":[1,null]}]}\n" +
           other_model + record(30) + "{\"step\":40,\"lay");
  EXPECT_THAT(history.steps, ElementsAre(10, 30));
  EXPECT_EQ(history.problem, "5 lines could not be read");
  EXPECT_EQ(read("nonsense\n").problem, "has no count of experts at its end that could be read");
  EXPECT_EQ(read("").problem, "");
  EXPECT_TRUE(read_expert_history(directory_ / "missing").problem.empty());
  std::filesystem::create_symlink("experts.jsonl", directory_ / "link");
  EXPECT_EQ(read_expert_history(directory_ / "link").problem, "is a symbolic link");
  // No count takes more memory than there are experts in the world.
  EXPECT_TRUE(read(record(10, 6, 40'000)).layers.empty());
}

// Evenly spaced records, the first, the newest, and no more than fit; of a small file, and of one
// that is never read as a whole.
TEST_F(ExpertHistories, AreThinnedOut) {
  for (const int records : {400, 60'000}) {
    std::string text;
    for (int i = 1; i <= records; ++i) text += record(10.0 * i, i % 2 == 0 ? 0 : 6);
    const ExpertHistory history = read(text, 50 * 2 * 3);
    EXPECT_TRUE(history.thinned);
    EXPECT_LE(history.steps.size(), 50u);
    EXPECT_GE(history.steps.size(), 48u);
    EXPECT_LE(history.steps.front(), 10 + 10.0 * records / 49);
    EXPECT_EQ(history.steps.back(), 10.0 * records);
    for (std::size_t i = 1; i < history.steps.size(); ++i)
      EXPECT_NEAR(history.steps[i] - history.steps[i - 1], 10.0 * records / 49,
                  0.3 * 10.0 * records / 49)
          << i;
    for (std::size_t i = 0; i < history.steps.size(); ++i)
      EXPECT_EQ(history.layers[1].loads[3 * i] == 0, std::fmod(history.steps[i], 20) == 0);
  }
}

TEST_F(ExpertHistories, AreInTheReportOfARun) {
  write_synthetic_run(directory_.path() / "run", {});
  std::ofstream(directory_ / "run/experts.jsonl") << record(10) << record(20);
  EXPECT_THAT(
      report_text(read_run(directory_.path() / "run")),
      HasSubstr("  experts: layer 4 is the least even: 1.50 × the mean load, entropy 0.946, "
                "1 of 3 experts idle (step 20)\n"));
}

}  // namespace
}  // namespace kintsugi
