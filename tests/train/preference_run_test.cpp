// Runs with objective dpo: margins grow, the reference is computed once, and runs continue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/stores/token_writer.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/rank_trainers.h"
#include "support/same_checkpoint.h"
#include "train/trainer/preference_reference.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

std::vector<std::int32_t> pair_bytes(const std::string& text) { return {text.begin(), text.end()}; }

// A store of pairs in bytes: of the same prompts, "yes" is preferred to "no".
std::string write_pairs(const TemporaryDirectory& directory, int pairs) {
  const fs::path prefix = directory / "pairs";
  TokenWriter writer(prefix, TokenType::U8, {.mask = true});
  for (int i = 0; i < pairs; ++i) {
    const std::string prompt = fmt::format("{}? ", 17 * i % 97);
    for (const std::string answer : {"yes.", "no."}) {
      std::vector<std::uint8_t> mask(prompt.size(), 0);
      mask.resize(prompt.size() + answer.size(), 1);
      writer.append(pair_bytes(prompt + answer), mask);
      answer == "yes." ? writer.end_sequence() : writer.end_document();
    }
  }
  StoreInfo info;
  info.vocab_size = 256;
  info.tokens = writer.state().tokens;
  info.documents = pairs;
  info.shards = {writer.finish()};
  info.kind = "preference";
  info.longest = 15;
  TokenWriter::publish(prefix);
  write_store_info(prefix, info);
  return prefix.string();
}

std::vector<nlohmann::json> pair_metrics(const fs::path& run) {
  std::vector<nlohmann::json> records;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

class PreferenceRun : public testing::Test {
 protected:
  PreferenceRun() : store_(write_pairs(directory_, 40)) {
    run_training(small_config(directory_.write("corpus.txt", small_corpus(200)), base_.string(),
                              "steps: 3, eval_every: 0"));
  }
  std::string config(const std::string& run, const std::string& train,
                     const std::string& rest = "") const {
    return fmt::format(
        "run: {{dir: \"{}\", seed: 3}}\nmodel: {{init: \"{}\"}}\n"
        "objective: {{kind: dpo, beta: 0.5}}\n"
        "data: {{train: [{{path: \"{}\"}}], tokenizer: bytes, sequence_length: 32, "
        "valid_fraction: 0.2}}\nbatch: {{global: 4, micro: 2}}\n"
        "optimizer: {{lr: 2e-3, schedule: constant, warmup_steps: 0}}\n"
        "train: {{keep_checkpoints: 0, {}}}\n{}",
        (directory_ / run).string(), base_.string(), store_, train, rest);
  }
  std::vector<fs::path> reference_files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(fs::path(store_).parent_path()))
      if (entry.path().filename().string().starts_with("pairs.reference-"))
        found.push_back(entry.path());
    return found;
  }

  const TemporaryDirectory directory_;
  const fs::path base_ = directory_ / "base";
  const std::string store_;
};

TEST_F(PreferenceRun, TheMarginGrows) {
  run_training(config("run", "steps: 20, eval_every: 20"));
  const auto records = pair_metrics(directory_ / "run");
  ASSERT_EQ(records.size(), 20u);
  const nlohmann::json &first = records.front(), &last = records.back();
  EXPECT_NEAR(first["loss"], std::log(2), 1e-4);
  EXPECT_NEAR(first["reward_margin"], 0, 1e-4);
  EXPECT_LT(last["loss"], 0.35);
  EXPECT_GT(last["reward_margin"], 1);
  EXPECT_EQ(last["reward_accuracy"], 1);
  EXPECT_NEAR(last["reward_margin"].get<double>(),
              last["reward_chosen"].get<double>() - last["reward_rejected"].get<double>(), 1e-9);
  EXPECT_LT(last["valid_loss"], 0.5);
  EXPECT_EQ(last["valid_reward_accuracy"], 1);
  EXPECT_FALSE(last.contains("valid_bits_per_byte"));
  EXPECT_EQ(reference_files().size(), 1u);
}

// Its files are used again by another run; a damaged one is not.
TEST_F(PreferenceRun, TheReferenceIsComputedOnce) {
  run_training(config("first", "steps: 2, eval_every: 0"));
  ASSERT_EQ(reference_files().size(), 1u);
  const fs::path file = reference_files().front();
  const std::string content = read_text_file(file);
  const auto values = read_reference(file, 80);
  ASSERT_TRUE(values);
  for (const double value : *values) EXPECT_LT(value, 0);

  std::vector<double> other = *values;
  for (double& value : other) value -= 0.25;  // still a good file: the next run must use it
  write_reference({file, directory_ / "unused"}, other);
  run_training(config("second", "steps: 2, eval_every: 0"));
  const auto before = pair_metrics(directory_ / "first"),
             after = pair_metrics(directory_ / "second");
  EXPECT_NEAR(after[0]["reward_chosen"].get<double>(),
              before[0]["reward_chosen"].get<double>() + 0.5 * 0.25, 1e-4);

  std::string damaged = content;
  damaged[damaged.size() - 3] ^= 1;
  std::ofstream(file, std::ios::binary) << damaged;
  const CapturedLog log;
  run_training(config("third", "steps: 2, eval_every: 0"));
  EXPECT_THAT(log.warnings(), testing::HasSubstr("is damaged: its hash does not match"));
  EXPECT_EQ(read_text_file(file), content);
  EXPECT_EQ(pair_metrics(directory_ / "third")[1]["loss"], before[1]["loss"]);
}

TEST_F(PreferenceRun, ContinuesBitForBit) {
  run_training(config("whole", "steps: 6, eval_every: 3"));
  run_training(config("broken", "steps: 3, eval_every: 3"));
  fs::remove(reference_files().front());  // the weights are no longer those of the start
  {
    const CapturedLog log;
    run_training(config("broken", "steps: 6, eval_every: 3"));
    EXPECT_THAT(log.warnings(), testing::HasSubstr("is gone: it is computed again with"));
  }
  expect_same_checkpoint(last_checkpoint(directory_ / "broken"),
                         last_checkpoint(directory_ / "whole"));

  fs::remove(reference_files().front());
  fs::rename(base_, directory_ / "moved");
  std::string later = config("broken", "steps: 8, eval_every: 3");
  later.replace(later.find(base_.string()), base_.string().size(), (directory_ / "moved").string());
  EXPECT_THAT(user_error_of([&] { run_training(later); }),
              testing::HasSubstr("and so is the reference model"));
}

TEST_F(PreferenceRun, RanksTrainAsOneProcess) {
  const std::string train = "steps: 4, eval_every: 4, precision: fp64";
  run_training(config("alone", train));
  for (const char* layout : {"{dp: 2}", "{cp: 2}", "{tp: 2, pp: 2}"}) {
    fs::remove(reference_files().front());
    fs::remove_all(directory_ / "ranks");
    const CapturedLog log;
    train_on_ranks(std::string(layout) == "{tp: 2, pp: 2}" ? 4 : 2,
                   config("ranks", train, fmt::format("layout: {}\n", layout)));
    const auto expected = pair_metrics(directory_ / "alone"),
               found = pair_metrics(directory_ / "ranks");
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      for (const char* key : {"loss", "grad_norm", "reward_chosen", "reward_margin", "targets"})
        EXPECT_NEAR(found[i][key], expected[i][key], 1e-9) << layout << ", " << key;
    EXPECT_NEAR(found.back()["valid_loss"], expected.back()["valid_loss"], 1e-9) << layout;
  }
}

TEST_F(PreferenceRun, WhatCannotBeTrainedIsRefused) {
  const auto complaint = [&](const std::string& yaml) {
    return user_error_of([&] { parse_run_config(yaml, "test.yaml"); });
  };
  EXPECT_THAT(complaint(config("run", "steps: 1, z_loss: 1e-4")),
              testing::HasSubstr("train.z_loss is not a part of objective dpo"));
  std::string random = config("run", "steps: 1");
  random.replace(random.find("init: \"" + base_.string() + "\""), base_.string().size() + 8,
                 "preset: llama-tiny");
  const auto backend = make_cpu_backend(2);
  EXPECT_THAT(user_error_of([&] { Trainer(*backend, parse_run_config(random, "test.yaml")); }),
              testing::HasSubstr("set model.init"));
}

// A folder that cannot be written to: here, one that does not exist.
TEST(Reference, IsStoredInTheRunIfTheStoreIsReadOnly) {
  const TemporaryDirectory directory;
  const ReferencePaths paths{directory / "none" / "x.safetensors",
                             directory / "run" / "reference" / "x.safetensors"};
  const std::vector<double> values = {-1.5, -2.25};
  const CapturedLog log;
  write_reference(paths, values);
  EXPECT_THAT(log.warnings(), testing::HasSubstr("are stored in"));
  EXPECT_FALSE(read_reference(paths.beside_store, 2));
  EXPECT_EQ(read_reference(paths.in_run, 2), values);
  EXPECT_FALSE(read_reference(paths.in_run, 3)) << "of another store";
}

}  // namespace
}  // namespace kintsugi
