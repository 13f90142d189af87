// What runs record about the loads of experts.
#include "train/trainer/expert_loads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/captured_log.h"
#include "support/config_text.h"
#include "support/small_run.h"
#include "tensor/safetensors.h"

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
        corpus, run,
        "steps: 7, eval_every: 0, save: false, balance: {statistics_every: 3, capacity: 0.49}");
    const std::string dense = "family: llama", mixture =
                                                   "family: qwen3_moe, experts: {count: 4, "
                                                   "chosen: 2, dense_layers: [0]}";
    config.replace(config.find(dense), dense.size(), mixture);
    run_training(config);
    EXPECT_NE(captured.warnings().find("capacity 0.49: the experts compute about 49 %"),
              std::string::npos);
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
  EXPECT_GE(layer["dropped"], 6 * 24) << "all experts together compute half of the choices";
  std::ifstream metrics(run / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto step = nlohmann::json::parse(line);
    EXPECT_EQ(step.contains("expert_load"), step["step"] == 3 || step["step"] == 6) << line;
    EXPECT_GE(step["balance_loss"], 0.0099) << line;
  }
}

// A small model whose routers have biases.
std::string biased_config(const std::string& corpus, const std::string& run,
                          const std::string& train) {
  std::string config = small_config(corpus, run, train);
  const std::string dense = "family: llama",
                    mixture = "family: dots1, experts: {count: 4, chosen: 2, shared: 1}";
  return config.replace(config.find(dense), dense.size(), mixture);
}

std::vector<float> stored_biases(const std::filesystem::path& checkpoint) {
  const SafetensorsModel files(checkpoint);
  std::vector<float> biases;
  for (const int layer : {0, 1}) {
    const auto found =
        files.find(fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer));
    EXPECT_EQ(found.entry->dtype, DType::F32);
    float of_layer[4];
    std::memcpy(of_layer, found.bytes().data(), sizeof(of_layer));
    biases.insert(biases.end(), of_layer, of_layer + 4);
  }
  return biases;
}

// A run of six steps, and one that continues its checkpoint of step 3.
struct TwoRuns {
  TemporaryDirectory directory;
  std::filesystem::path whole = directory / "whole/checkpoints",
                        resumed = directory / "resumed/checkpoints";

  explicit TwoRuns(const std::string& keys) {
    const std::string corpus = directory.write("corpus.txt", small_corpus(200)),
                      train = keys + ", eval_every: 2, checkpoint_every: 3, steps: 6";
    const CapturedLog captured;
    run_training(biased_config(corpus, whole.parent_path(), train));
    std::filesystem::copy(
        whole.parent_path(), resumed.parent_path(),
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    for (const char* const later : {"step-00000006", "state/step-00000006", "latest"})
      std::filesystem::remove_all(resumed / later);
    std::filesystem::create_symlink("step-00000003", resumed / "latest");
    run_training(biased_config(corpus, resumed.parent_path(), train));
  }
};

TEST(ExpertLoads, MoveBiasesThatAResumeContinues) {
  const TwoRuns runs("precision: bf16");
  const std::vector<float> last = stored_biases(runs.resumed / "step-00000006");
  EXPECT_EQ(last, stored_biases(runs.whole / "step-00000006"));
  EXPECT_NE(last, stored_biases(runs.whole / "step-00000003"));
  for (const float bias : last) {
    const double steps = std::round(bias / 0.001);
    EXPECT_NEAR(bias, 0.001 * steps, 1e-8) << "in bf16, it would be rounded";
    EXPECT_LE(std::abs(steps), 6);
  }
}

// The counts of step 3 are those of the loss in step 4.
TEST(ExpertLoads, OfTheLastStepContinueTheBalanceLoss) {
  const TwoRuns runs("balance: {loss: 1, scope: batch, statistics_every: 3}");
  const char* const weights = "step-00000006/model.safetensors";
  EXPECT_TRUE(read_text_file(runs.resumed / weights) == read_text_file(runs.whole / weights))
      << "not the same bits";
  const std::vector<double> counts = saved_state(runs.whole / "step-00000003").expert_counts;
  std::ifstream records(runs.whole.parent_path() / "experts.jsonl");
  std::string first;
  std::getline(records, first);
  const nlohmann::json record = nlohmann::json::parse(first);
  std::vector<double> recorded;
  for (const nlohmann::json& layer : record["layers"])
    for (const double choices : layer["choices"]) recorded.push_back(choices);
  EXPECT_EQ(counts, recorded);
  // Checkpoints of older versions have none.
  nlohmann::json state =
      nlohmann::json::parse(read_text_file(runs.whole / "step-00000003/trainer.json"));
  state.erase("expert_counts");
  EXPECT_TRUE(state_from_json(state.dump(), "trainer.json").expert_counts.empty());
}

TEST(ExpertLoads, AreBalancedByBiasesWhereThereAreSome) {
  const std::string experts = "data: {train: [{path: a.txt}]}\nmodel: {preset: ";
  const auto balance_of = [&](const std::string& model, const std::vector<std::string>& set = {}) {
    return config_text::parse(experts + model + "}\n", set).model.balance;
  };
  EXPECT_EQ(balance_of("moe-tiny").bias_speed, 0);
  EXPECT_EQ(balance_of("moe-tiny").loss, 0.01);
  EXPECT_EQ(balance_of("dots1").bias_speed, 0.001);
  EXPECT_EQ(balance_of("dots1").loss, 0.0001);
  EXPECT_EQ(balance_of("dots1").z_loss, 0);
  EXPECT_EQ(balance_of("dots1", {"train.balance.bias_speed=0"}).bias_speed, 0);
  EXPECT_EQ(balance_of("dots1", {"train.balance.loss=0.01"}).loss, 0.01);
  EXPECT_EQ(balance_of("dots1", {"adapter.kind=lora"}).bias_speed, 0);
  const auto error_of = [&](const std::string& model, const std::vector<std::string>& set) {
    return config_text::error_of(experts + model + "}\n", set);
  };
  EXPECT_NE(error_of("moe-tiny", {"train.balance.bias_speed=0.01"})
                .find("train.balance.bias_speed is 0.01, but the routers of family qwen3_moe have "
                      "no bias: remove it"),
            std::string::npos);
  EXPECT_NE(error_of("dots1", {"train.balance.bias_speed=0.01", "adapter.kind=lora"})
                .find("train.balance.bias_speed is 0.01, but a checkpoint of adapters has no "
                      "biases of routers: remove it"),
            std::string::npos);
}

TEST(ExpertLoads, AreOfModelsWithExperts) {
  const std::string error = config_text::error_of(config_text::kShort, {"train.balance.loss=0.1"});
  EXPECT_NE(error.find("train.balance is for experts, and the model has none: remove it"),
            std::string::npos)
      << error;
  const std::string dense = config_text::error_of(
      config_text::kShort,
      {"model.preset=moe-tiny", "model.experts.dense_layers=[0,1,2,3]", "train.balance.loss=0.1"});
  EXPECT_NE(dense.find("the model has none: remove it"), std::string::npos) << dense;
}

}  // namespace
}  // namespace kintsugi
