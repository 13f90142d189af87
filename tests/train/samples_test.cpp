// Texts that a model generates as it is trained: the same as those of its checkpoints, in every
// layout, and without an effect on the training.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "support/errors.h"
#include "support/loaded_model.h"
#include "support/parallel_run.h"
#include "support/rank_trainers.h"
#include "train/text_samples.h"

namespace kintsugi {
namespace {

// ---- the engine

Training sampled_training(const std::string& family, bool documents = false) {
  return {.model = tiny_model(family, 2),
          .sequences = 4,
          .micro = 2,
          .length = 64,
          .documents = documents};
}

const std::vector<TokenIds> kSamplePrompts = {{1, 2, 3}, {7}, {4, 4, 9, 11, 2}};

std::vector<TokenIds> greedy_on(const RankLayout& layout, const Training& training,
                                std::int64_t tokens, bool trained = true) {
  std::vector<TokenIds> texts;
  on_ranks(layout, training, [&](const Member& member) {
    if (trained) member.step(1);  // updates of the weights may be late
    const auto found = continue_greedily(member.engine, kSamplePrompts, {.tokens = tokens});
    ASSERT_TRUE(found.has_value());
    if (member.world.rank() == 0) texts = *found;
  });
  return texts;
}

// The token with the smallest loss, one forward for each candidate.
std::vector<TokenIds> slowly(const Training& training, std::int64_t tokens, bool trained = true) {
  std::vector<TokenIds> texts(kSamplePrompts.size());
  Training alone = training;
  alone.documents = false;
  on_ranks({}, alone, [&](const Member& member) {
    if (trained) member.step(1);
    for (std::size_t i = 0; i < kSamplePrompts.size(); ++i) {
      TokenIds ids = kSamplePrompts[i];
      for (std::int64_t k = 0; k < tokens; ++k) {
        const std::size_t at = ids.size() - 1;
        TokenIds row = ids, targets(static_cast<std::size_t>(training.length), -1);
        row.resize(static_cast<std::size_t>(training.length), 5);
        std::int32_t best = 0;
        double smallest = INFINITY;
        for (std::int32_t token = 0; token < training.model.vocab_size; ++token) {
          targets[at] = token;
          const double loss = member.engine.evaluate({row, targets}).front();
          if (loss < smallest) best = token, smallest = loss;
        }
        ids.push_back(best);
        texts[i].push_back(best);
      }
    }
  });
  return texts;
}

TEST(GreedyTexts, AreTheMostLikelyTokensInEveryLayout) {
  for (const std::string family : {"gpt2", "llama-gqa"}) {
    const Training training = sampled_training(family);
    const std::vector<TokenIds> expected = slowly(training, 4);
    const std::vector<RankLayout> layouts = {
        {},
        {.tp = 2},
        {.tp = 2, .sequence_parallel = true},
        {.cp = 2},
        {.pp = 2},
        {.dp = 2, .zero = 3},
        {.dp = 4},  // more ranks than micro-batches
        {.dp = 2, .zero = 1, .tp = 2, .pp = 2},
    };
    for (const RankLayout& layout : layouts)
      EXPECT_EQ(greedy_on(layout, training, 4), expected) << family << ", " << to_string(layout);
    // Training with document masks gives other weights, so they are the first ones here.
    EXPECT_EQ(greedy_on({.tp = 2}, sampled_training(family, true), 4, false),
              slowly(training, 4, false))
        << family << ", with document masks";
  }
}

TEST(GreedyTexts, EndAtTheEndTokenAndAtTheLengthOfTheEngine) {
  Training training = sampled_training("gpt2");
  const std::vector<TokenIds> whole = greedy_on({}, training, 6);
  on_ranks({}, training, [&](const Member& member) {
    member.step(1);
    const std::int32_t end = whole[0][2];
    const auto found =
        continue_greedily(member.engine, kSamplePrompts, {.tokens = 6, .end_token = end});
    ASSERT_TRUE(found);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      TokenIds expected;
      for (const std::int32_t token : whole[i]) {
        if (token == end) break;
        expected.push_back(token);
      }
      EXPECT_EQ((*found)[i], expected) << i;
    }
    // A prompt of 64 tokens has one successor, one of 60 has five.
    const auto limited =
        continue_greedily(member.engine, {TokenIds(64, 3), TokenIds(60, 3)}, {.tokens = 100});
    ASSERT_TRUE(limited);
    EXPECT_EQ((*limited)[0].size(), 1u);
    EXPECT_EQ((*limited)[1].size(), 5u);
    int asked = 0;
    EXPECT_FALSE(continue_greedily(member.engine, kSamplePrompts,
                                   {.tokens = 6, .interrupts = [&] { return ++asked == 3; }}));
    EXPECT_EQ(asked, 3);
  });
}

// ---- runs

constexpr const char* kSamplesKey = "samples: {prompts: [\"the river\", \"a\"], tokens: 12}";

std::vector<nlohmann::json> sample_lines(const std::filesystem::path& run) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(run / "samples.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::vector<double> losses_in(const std::filesystem::path& run) {
  std::vector<double> losses;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    losses.push_back(nlohmann::json::parse(line)["loss"]);
  return losses;
}

std::string text_of_bytes(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += static_cast<char>(id);
  return text;
}

// What generation from the checkpoint gives, with its own forward and its cache of keys.
std::string generated(const std::filesystem::path& checkpoint, const std::string& prompt) {
  LoadedModel model(checkpoint);
  std::vector<std::int32_t> ids;
  for (const char c : prompt) ids.push_back(static_cast<unsigned char>(c));
  return text_of_bytes(model.generate(ids, 12));
}

const std::vector<std::pair<int, std::string>> kSampledLayouts = {
    {1, ""}, {2, "layout: {tp: 2}\n"}, {2, "layout: {pp: 2}\n"}, {2, "layout: {zero: 3}\n"}};

TEST(Samples, AreThoseOfTheCheckpointsInEveryLayout) {
  for (const std::string family : {"llama", "gpt2"})
    for (const auto& [ranks, layout] : kSampledLayouts) {
      const TemporaryDirectory directory;
      const std::string corpus = directory.write("corpus.txt", small_corpus(400));
      std::string config =
          small_config(corpus, directory / "run",
                       std::string("steps: 160, checkpoint_every: 80, ") + kSamplesKey, layout);
      std::vector<std::string> overrides = {"batch.global=4"};
      if (family == "gpt2")
        config.replace(config.find("family: llama"), 13, "family: gpt2"),
            config.erase(config.find("kv_heads: 2, "), 13);
      const CapturedLog log;
      train_on_ranks(ranks, config, overrides);
      const auto lines = sample_lines(directory / "run");
      ASSERT_EQ(lines.size(), 4u) << family << " " << layout;
      for (std::size_t i = 0; i < lines.size(); ++i) {
        const std::int64_t step = i < 2 ? 80 : 160;
        EXPECT_EQ(lines[i]["step"], step);
        const std::string prompt = lines[i]["prompt"];
        EXPECT_EQ(prompt, i % 2 == 0 ? "the river" : "a");
        EXPECT_EQ(
            lines[i]["text"],
            generated(directory / "run" / "checkpoints" / fmt::format("step-{:08}", step), prompt))
            << family << " " << layout << " step " << step;
      }
      const std::string last = lines[2]["text"];
      EXPECT_GT(std::set<char>(last.begin(), last.end()).size(), 2u) << last << ": says nothing";
      EXPECT_NE(log.text().find("2 samples in "), std::string::npos);
    }
}

TEST(Samples, DoNotDisturbTheRun) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(400));
  const auto run = [&](const std::string& name, const std::string& samples) {
    const CapturedLog log;
    train_on_ranks(2, small_config(corpus, directory / name,
                                   "steps: 20, checkpoint_every: 5, dropout: 0.1" + samples,
                                   "layout: {tp: 2}\n"));
    return losses_in(directory / name);
  };
  const std::vector<double> without = run("without", ""),
                            with = run("with", std::string(", ") + kSamplesKey);
  ASSERT_EQ(without.size(), 20u);
  EXPECT_EQ(with, without);
  EXPECT_EQ(sample_lines(directory / "with").size(), 8u);
  EXPECT_FALSE(std::filesystem::exists(directory / "without" / "samples.jsonl"));
}

TEST(Samples, AreGeneratedAtTheEndOfARunThatSavesNothing) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  run_training(small_config(corpus, directory / "run",
                            std::string("steps: 3, save: false, ") + kSamplesKey));
  const auto lines = sample_lines(directory / "run");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["step"], 3);
}

TEST(Samples, PromptsAreChecked) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const auto problem = [&](const std::string& samples) {
    return user_error_of([&] {
      run_training(small_config(corpus, directory / "run", "steps: 3, samples: " + samples));
    });
  };
  EXPECT_NE(problem("{prompts: [\"\"]}").find("train.samples.prompts"), std::string::npos);
  EXPECT_NE(problem("{prompts: [\"" + std::string(25, 'x') + "\"]}").find("25 tokens"),
            std::string::npos);
  EXPECT_NE(problem("{tokens: 5}").find("train.samples.prompts"), std::string::npos);
  EXPECT_NO_THROW(run_training(
      small_config(corpus, directory / "run", "steps: 3, samples: {prompts: [], tokens: 5}")))
      << "an empty list turns them off";
}

}  // namespace
}  // namespace kintsugi
