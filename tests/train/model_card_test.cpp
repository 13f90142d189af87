#include "train/checkpoint/model_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/build_info.h"
#include "core/file.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ModelCardTest : public testing::Test {
 protected:
  // The model card at the last step of a run with two sources.
  std::string card(const std::string& name, const std::string& train,
                   const std::vector<std::string>& overrides = {}) {
    const fs::path run = directory_ / name;
    std::vector<std::string> all = {fmt::format(
        "data.train=[{{path: '{}', weight: 3}}, {{path: '{}', name: \"a|b\"}}]", one_, two_)};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const auto backend = make_cpu_backend(1);
    Trainer trainer(*backend, parse_run_config(small_config(one_, run, train), "test.yaml", all));
    testing::internal::CaptureStdout();
    trainer.run(ResumeMode::Auto);
    testing::internal::GetCapturedStdout();
    checkpoint_ = fs::canonical(run / "checkpoints/latest");
    return read_text_file(checkpoint_ / "README.md");
  }

  TemporaryDirectory directory_;
  std::string one_ = directory_.write("one.txt", small_corpus(100));
  std::string two_ = directory_.write("two.txt", small_corpus(150));
  fs::path checkpoint_;
};

TEST_F(ModelCardTest, SaysWhatTheModelIsAndHowItWasTrained) {
  const std::string text = card("kiln", "steps: 4, eval_every: 4, checkpoint_every: 2");
  EXPECT_THAT(text, StartsWith("---\nlibrary_name: transformers\n"));
  EXPECT_THAT(text, AllOf(HasSubstr("\n# kiln\n"), HasSubstr("\n- llama\n"),
                          HasSubstr(fmt::format("Kintsugi {} (commit {})", program_version(),
                                                program_commit()))));
  // small_config, by hand: 2 layers with 2 x 32 x 32 for q and o, 2 x 16 x 32 for k and v,
  // 3 x 32 x 48 for the MLP, two norms of 32; a norm and 256 x 32 for the tied embedding.
  const int parameters = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48 + 2 * 32) + 32 + 256 * 32;
  EXPECT_THAT(text, AllOf(HasSubstr(fmt::format("| parameters | {} |", parameters)),
                          HasSubstr("| layers | 2 |"), HasSubstr("| hidden size | 32 |"),
                          HasSubstr("| attention heads | 4 of size 8, 2 for keys and values |"),
                          HasSubstr("| vocabulary | 256, head tied to the embedding |"),
                          HasSubstr("| positions | 64, rotary with base 10000 |")));
  EXPECT_THAT(text, AllOf(HasSubstr("Tokenizer: bytes, 256 tokens"),
                          HasSubstr("| one | 75.00 % | "), HasSubstr("| a\\|b | 25.00 % | ")));
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("| step | 4 of 4 |"), HasSubstr(fmt::format("| tokens | {} |", 4 * 6 * 24)),
            HasSubstr("| batch | 6 sequences of 24 tokens |"),
            HasSubstr("| learning rate | cosine, 0.004 to 0.0001, 2 of 4 steps"),
            HasSubstr("| precision | fp32, moments fp32 |"), HasSubstr("| layout | one rank |"),
            HasSubstr("| loss | "), HasSubstr("| validation loss | ")));
  EXPECT_THAT(text, Not(HasSubstr(directory_.path().string()))) << "paths are private";
  const auto listed =
      nlohmann::json::parse(read_text_file(checkpoint_ / "checksums.json")).at("files");
  EXPECT_TRUE(listed.contains("README.md"));
}

TEST_F(ModelCardTest, NamesTheOptimizerAndTheRecipes) {
  const std::string train = "steps: 2, eval_every: 0, checkpoint_every: 0";
  EXPECT_THAT(card("adamw", train),
              AllOf(HasSubstr("| optimizer | AdamW, betas 0.9 and 0.95, eps 1e-08, weight decay "),
                    Not(HasSubstr("Muon")), Not(HasSubstr("z-loss")), Not(HasSubstr("ema"))));
  EXPECT_THAT(
      card("muon", train + ", z_loss: 1e-5, ema: {decay: 0.5, every: 2}",
           {"optimizer.kind=muon", "optimizer.muon.lr=0.02", "optimizer.decay_embeddings=false",
            "optimizer.skip_step.deviations=6"}),
      AllOf(HasSubstr("| optimizer | Muon for the hidden matrices (momentum 0.95 with "
                      "look-ahead, 5 iterations in bf16, RMS-matched learning rate of 0.02 "
                      "at most); AdamW, betas 0.9 and 0.95, eps 1e-08 for the rest, "),
            HasSubstr(" except for embeddings, clipping "), HasSubstr("| z-loss | 1e-05 |"),
            HasSubstr("| skipped outliers | 6 standard deviations above the last 128 steps"),
            HasSubstr("| average of the weights | in `ema/`, decay 0.5 every 2 steps |")));
}

// A run that was stopped and resumed writes the same card as one without a stop.
TEST_F(ModelCardTest, IsAFunctionOfTheRunAndTheStep) {
  const std::string train = "steps: 4, eval_every: 3, checkpoint_every: 0";
  const std::string whole = card("a/run", train);
  fs::create_directories(directory_ / "b");
  card("b/run", train, {"train.steps=2", "optimizer.schedule=constant"});
  card("c/run", train, {"optimizer.schedule=constant"});
  const std::string straight = read_text_file(checkpoint_ / "README.md");
  EXPECT_EQ(card("b/run", train, {"optimizer.schedule=constant"}), straight);
  EXPECT_NE(whole, straight);
  // This step was not validated: the card must not show values of an earlier step.
  EXPECT_THAT(card("d", train, {"train.steps=2", "train.eval_every=0"}),
              Not(HasSubstr("validation loss")));
}

}  // namespace
}  // namespace kintsugi
