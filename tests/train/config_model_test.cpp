// What a model adopts from its run: the vocabulary size of the tokenizer and the number of trained
// positions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/train/dry_run.h"
#include "core/file.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/program_test.h"
#include "support/small_run.h"
#include "train/config/model.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

RunConfig parse_model(const std::string& model, std::int64_t length,
                      const std::vector<std::string>& overrides = {}) {
  return parse_run_config(
      fmt::format("model: {{{}}}\ndata: {{train: [{{path: a.txt}}], sequence_length: {}}}\n", model,
                  length),
      "run.yaml", overrides);
}

TEST(ModelPositions, AreThoseThatAreTrained) {
  // The preset's value is not used.
  for (const std::int64_t length : {128, 4096, 8192}) {
    const ModelConfig model = parse_model("preset: llama-1b", length).model;
    EXPECT_EQ(model.max_positions, length);
    EXPECT_FALSE(model.rope_scaling)
        << "no sequence is longer than original_max_positions, " << length;
  }
  const ModelConfig longer = parse_model("preset: llama-1b", 16384).model;
  EXPECT_EQ(longer.max_positions, 16384);
  EXPECT_EQ(longer.rope_scaling, load_preset("llama-1b").rope_scaling);
  EXPECT_EQ(parse_model("preset: llama-tiny", 2048).model.max_positions, 2048) << "raised";
  EXPECT_EQ(parse_model("preset: bloom-560m", 100).model.max_positions, 100);
  // The size of a table of learned positions is not changed.
  EXPECT_EQ(parse_model("preset: gpt2-124m", 256).model.max_positions, 1024);
  EXPECT_THAT(user_error_of([] { parse_model("preset: gpt2-124m", 2000); }),
              HasSubstr("only 1024 learned positions"));
}

TEST(ModelPositions, AreKeptIfTheConfigurationGivesThem) {
  EXPECT_EQ(parse_model("preset: llama-1b, max_positions: 131072", 4096).model.max_positions,
            131072);
  EXPECT_EQ(parse_model("preset: llama-1b, max_positions: 64", 4096).model.max_positions, 4096)
      << "that many are trained";
  const auto own =
      parse_model("preset: llama-1b, rope_scaling: {factor: 8}", 4096).model.rope_scaling;
  ASSERT_TRUE(own);
  EXPECT_EQ(own->factor, 8);
  EXPECT_TRUE(
      parse_model("preset: llama-1b", 512, {"model.rope_scaling={factor: 2}"}).model.rope_scaling);
  EXPECT_FALSE(
      parse_model("preset: llama-1b", 16384, {"model.rope_scaling=null"}).model.rope_scaling);
}

TEST(ModelPositions, AreWrittenAsResolved) {
  for (const char* model : {"preset: llama-1b", "preset: llama-1b, max_positions: 9999",
                            "preset: llama-1b, rope_scaling: {factor: 4}", "preset: gpt2-tiny"})
    for (const std::int64_t length : {256, 512}) {
      const RunConfig config = parse_model(model, length);
      EXPECT_EQ(parse_run_config(to_yaml(config), "config.yaml").model, config.model) << model;
    }
}

// Runs of a model whose preset has a rope scaling and more positions than are trained.
class ScaledRun : public testing::Test {
 protected:
  fs::path train(const std::string& name, int steps, const std::string& own) {
    const fs::path run = directory_ / name;
    const std::string yaml = fmt::format(
        "run: {{dir: '{}'}}\nmodel: {{config: '{}'{}}}\n"
        "data: {{train: [{{path: '{}'}}], sequence_length: 24, valid_fraction: 0.1}}\n"
        "batch: {{global: 4, micro: 2}}\n"
        "optimizer: {{lr: 3e-3, min_lr: 0, warmup_steps: 0, schedule: constant}}\n"
        "train: {{steps: {}, eval_every: 0}}\n",
        run.string(), base_, own, corpus_, steps);
    run_training(yaml);
    return run;
  }
  static std::vector<double> losses(const fs::path& run) {
    std::vector<double> losses;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      losses.push_back(Json::parse(line).at("loss"));
    return losses;
  }
  static Json saved_config(const fs::path& run) {
    return Json::parse(read_text_file(run / "checkpoints/latest/config.json"));
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  std::string base_ = directory_.write(
      "base.yaml",
      "family: llama\nvocab_size: 256\nhidden_size: 32\nlayers: 2\nheads: 2\nffn_size: 48\n"
      "max_positions: 4096\n"
      "rope_scaling: {factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
      "original_max_positions: 64}\n");
  const std::string scaling_ =
      ", max_positions: 4096, rope_scaling: {factor: 8, low_freq_factor: 1, high_freq_factor: 4, "
      "original_max_positions: 64}";
};

TEST_F(ScaledRun, ItsCheckpointHasTheTrainedPositions) {
  const Json plain = saved_config(train("plain", 1, ""));
  EXPECT_EQ(plain.at("max_position_embeddings"), 24);
  EXPECT_TRUE(plain.at("rope_scaling").is_null());
  const Json own = saved_config(train("own", 1, scaling_));
  EXPECT_EQ(own.at("max_position_embeddings"), 4096);
  EXPECT_EQ(own.at("rope_scaling").at("factor"), 8.0);
}

// Earlier versions trained with the positions and the rope scaling of the preset. A resume keeps
// them.
TEST_F(ScaledRun, ACheckpointOfAnEarlierVersionContinues) {
  const auto whole = losses(train("whole", 4, scaling_));
  const auto other = losses(train("other", 4, ""));
  ASSERT_NE(whole, other) << "scaling makes a difference";
  train("continued", 2, scaling_);
  const fs::path run = train("continued", 4, "");
  EXPECT_EQ(losses(run), whole);
  EXPECT_EQ(saved_config(run).at("rope_scaling").at("factor"), 8.0);
  EXPECT_EQ(saved_config(run).at("max_position_embeddings"), 24);
}

// ---- the vocabulary

class LoadedVocabulary : public ProgramTest {
 protected:
  std::string write_config(const std::string& model, const std::string& tokenizer) {
    return directory_.write(
        "run.yaml",
        fmt::format("model: {{{}}}\ndata: {{train: [{{path: a.txt}}], tokenizer: '{}'}}\n"
                    "device: cuda\n",
                    model, tokenizer));
  }
  std::string dry_run(const std::string& more = "") {
    const Outcome outcome = run_kintsugi("train run.yaml --dry-run --machine h200 " + more);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return outcome.out;
  }
  const std::string tokenizer_ = test_data_directory() + "/tokenizers/llama3";
};

TEST_F(LoadedVocabulary, IsTheTokenizersBeforeAnythingIsPlanned) {
  const std::int64_t tokens = load_tokenizer(tokenizer_)->vocab_size();
  ASSERT_GT(tokens, 256);
  const std::int64_t rounded = (tokens + 127) / 128 * 128;
  const RunConfig config = load_run_config(write_config("preset: llama-tiny", tokenizer_));
  EXPECT_EQ(config.model.vocab_size, rounded);
  EXPECT_EQ(config.model.eos_token, *load_tokenizer(tokenizer_)->end_of_document());
  EXPECT_EQ(plan_job(config).model.vocab_size, rounded);
  EXPECT_EQ(workload_of(config).model.vocab_size, rounded);
  // A dry run plans with the vocabulary of the run, not of the preset.
  const std::string planned = dry_run();
  EXPECT_EQ(planned, dry_run(fmt::format("--set model.vocab_size={}", rounded)));
  EXPECT_NE(planned, dry_run("--set data.tokenizer=bytes"));
}

TEST_F(LoadedVocabulary, IsCheckedWithTheConfiguration) {
  write_config("preset: llama-tiny, vocab_size: 300", tokenizer_);
  for (const char* command :
       {"train run.yaml --dry-run --machine h200", "train run.yaml --check"}) {
    const Outcome outcome = run_kintsugi(std::string(command) + " --set device=cpu");
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("model.vocab_size is 300"), HasSubstr("raise it")));
  }
  write_config("preset: llama-tiny", "nowhere");
  const Outcome outcome = run_kintsugi("train run.yaml --dry-run --machine h200");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("data.tokenizer: there is no tokenizer nowhere"));
}

}  // namespace
}  // namespace kintsugi
