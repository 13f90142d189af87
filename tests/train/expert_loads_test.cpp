// What runs record about the loads of experts.
#include "train/trainer/expert_loads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/captured_log.h"
#include "support/config_text.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

TEST(ExpertLoads, AreThoseOfTheirDefinition) {
  const std::vector<double> even = {5, 5, 5, 5}, one = {0, 8, 0, 0}, half = {4, 4, 0, 0};
  EXPECT_EQ(load_of(even).most, 1);
  EXPECT_NEAR(load_of(even).entropy, 1, 1e-15);
  EXPECT_EQ(load_of(even).idle, 0);
  EXPECT_EQ(load_of(one).most, 4);
  EXPECT_EQ(load_of(one).entropy, 0);
  EXPECT_EQ(load_of(one).idle, 3);
  EXPECT_NEAR(load_of(half).entropy, 0.5, 1e-15);
  EXPECT_EQ(load_of(half).idle, 2);
}

TEST(ExpertLoads, AreRecordedNowAndThen) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const std::filesystem::path run = directory / "run";
  {
    const CapturedLog captured;
    std::string config = small_config(
        corpus, run, "steps: 7, eval_every: 0, save: false, balance: {statistics_every: 3}");
    const std::string dense = "family: llama", mixture =
                                                   "family: qwen3_moe, experts: {count: 4, "
                                                   "chosen: 2, dense_layers: [0]}";
    config.replace(config.find(dense), dense.size(), mixture);
    run_training(config);
  }
  std::ifstream file(run / "experts.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["step"], 6);
  ASSERT_EQ(lines[1]["layers"].size(), 1u) << "layer 0 is dense";
  const nlohmann::json& layer = lines[1]["layers"][0];
  EXPECT_EQ(layer["layer"], 1);
  double sum = 0;
  for (const double choices : layer["choices"]) sum += choices;
  EXPECT_EQ(sum, 2 * 6 * 24) << "two choices of each token";
  EXPECT_GE(layer["max_load"], 1);
  std::ifstream metrics(run / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto step = nlohmann::json::parse(line);
    EXPECT_EQ(step.contains("expert_load"), step["step"] == 3 || step["step"] == 6) << line;
    EXPECT_GE(step["balance_loss"], 0.0099) << line;
  }
}

TEST(ExpertLoads, AreOfModelsWithExperts) {
  const std::string error = config_text::error_of(config_text::kShort, {"train.balance.loss=0.1"});
  EXPECT_NE(error.find("train.balance is for experts, and the model has none: remove it"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace kintsugi
