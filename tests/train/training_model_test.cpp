// Scores of requests through the training engine: rows of tokens, and the same scores in every
// layout.
#include "train/training_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

using Tokens = std::vector<std::int32_t>;

struct FilledRow {
  explicit FilledRow(std::size_t length, bool masks)
      : ids(length, 7), targets(length, 7), positions(masks ? length : 0), starts(positions) {}
  SampleRow row() { return {ids, targets, positions, starts}; }
  Tokens ids, targets, positions, starts;
};

const std::vector<TokenPair> kPairs = {{{1, 2, 3}, {4, 5}},       // 4 tokens are read
                                       {{6}, {8}},                // 1
                                       {{9, 10}, {}},             // nothing to predict
                                       {{11, 12}, {13, 14, 15}},  // 4
                                       {{16, 17, 18, 19, 20, 21}, {22, 23, 24}}};  // 8 of 9

const std::vector<std::size_t> kScored = {0, 1, 3, 4};

TEST(ScoringRows, PacksRequestsAsDocuments) {
  const ScoringRows rows(kPairs, kScored, 8, true);
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(rows.requests(0, 1), 2u);
  EXPECT_EQ(rows.requests(0, 3), 4u);
  FilledRow first(8, true);
  rows.fill(0, first.row());
  EXPECT_EQ(first.ids, (Tokens{1, 2, 3, 4, 6, 0, 0, 0}));
  EXPECT_EQ(first.targets, (Tokens{-1, -1, 4, 5, 8, -1, -1, -1}));
  EXPECT_EQ(first.positions, (Tokens{0, 1, 2, 3, 0, 0, 1, 2}));
  EXPECT_EQ(first.starts, (Tokens{0, 0, 0, 0, 4, 5, 5, 5}));
  EXPECT_EQ(rows.request_at(0, 3), 0u);
  EXPECT_EQ(rows.request_at(0, 4), 1u);
  EXPECT_EQ(rows.request_at(1, 2), 3u);
  FilledRow last(8, true);
  rows.fill(2, last.row());
  EXPECT_EQ(last.ids, (Tokens{16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(last.targets, (Tokens{-1, -1, -1, -1, -1, 22, 23, 24}));
}

TEST(ScoringRows, OneRequestPerRowWithoutMasks) {
  const ScoringRows rows(kPairs, kScored, 7, false);
  ASSERT_EQ(rows.size(), 4);
  FilledRow last(7, false);
  rows.fill(3, last.row());
  EXPECT_EQ(last.ids, (Tokens{17, 18, 19, 20, 21, 22, 23})) << "cut on the left";
  EXPECT_EQ(last.targets, (Tokens{-1, -1, -1, -1, 22, 23, 24}));
  EXPECT_EQ(rows.request_at(3, 5), 4u);
  EXPECT_EQ(ScoringRows(kPairs, {}, 7, true).size(), 0);
}

// ---- scores

std::vector<TokenPair> requests_for(std::int64_t vocabulary) {
  std::vector<TokenPair> pairs;
  std::int32_t token = 1;
  const auto draw = [&](std::size_t count) {
    Tokens ids;
    for (std::size_t i = 0; i < count; ++i)
      ids.push_back(token = (token * 7 + 3) % static_cast<std::int32_t>(vocabulary));
    return ids;
  };
  for (const std::size_t context : {1, 3, 40, 2, 4, 31, 1, 5, 62})
    pairs.push_back({draw(context), draw(1 + context % 3)});
  return pairs;
}

Training training_of(const std::string& family, bool documents, DType precision = DType::F64) {
  return {.model = tiny_model(family, 2),
          .precision = precision,
          .sequences = 4,
          .micro = 2,
          .length = 64,
          .documents = documents};
}

std::vector<ContinuationScore> scores_on(const RankLayout& layout, const Training& training,
                                         std::span<const TokenPair> pairs) {
  std::vector<ContinuationScore> scores;
  on_ranks(layout, training, [&](const Member& member) {
    member.step(1);  // the weights are not the first ones, and updates may be late
    std::size_t done = 0;
    TrainingModel model(member.engine, nullptr);
    const auto found = model.score(pairs, [&](std::size_t requests) { done += requests; });
    if (member.world.rank() == 0) scores = found;
    EXPECT_EQ(done, pairs.size());
  });
  return scores;
}

// The forward of one sequence with one target at a time, in one process: the loss of each target,
// and whether any other token would have a smaller one.
std::vector<ContinuationScore> plain_scores(const Training& training,
                                            std::span<const TokenPair> pairs) {
  std::vector<ContinuationScore> scores;
  Training alone = training;
  alone.documents = false;
  on_ranks({}, alone, [&](const Member& member) {
    member.step(1);
    const auto length = static_cast<std::size_t>(training.length);
    for (const TokenPair& pair : pairs) {
      ContinuationScore& score = scores.emplace_back();
      Tokens ids = pair.context;
      ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
      const std::size_t end = ids.size();
      ids.resize(length, 5);
      const auto loss = [&](std::size_t at, std::int32_t target) {
        Tokens targets(length, -1);
        targets[at] = target;
        return member.engine.evaluate({ids, targets}).front();
      };
      for (std::size_t at = pair.context.size() - 1; at + 1 < end; ++at) {
        const double found = loss(at, ids[at + 1]);
        score.log_probability -= found;
        for (std::int32_t other = 0; other < training.model.vocab_size; ++other)
          score.is_greedy = score.is_greedy && found <= loss(at, other);
      }
    }
  });
  return scores;
}

void expect_equal_scores(const std::vector<ContinuationScore>& found,
                         const std::vector<ContinuationScore>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i].log_probability, expected[i].log_probability, tolerance) << i;
    EXPECT_EQ(found[i].is_greedy, expected[i].is_greedy) << i;
  }
}

// Makes some requests greedy: their only token becomes the most likely one.
std::vector<TokenPair> with_greedy(const Training& training, std::vector<TokenPair> pairs) {
  for (std::size_t i = 0; i < pairs.size(); i += 3) {
    std::vector<TokenPair> candidates;
    for (std::int32_t token = 0; token < training.model.vocab_size; ++token)
      candidates.push_back({pairs[i].context, {token}});
    const auto scores = scores_on({}, training, candidates);
    double best = -std::numeric_limits<double>::infinity();
    for (std::size_t token = 0; token < scores.size(); ++token)
      if (scores[token].log_probability > best) {
        best = scores[token].log_probability;
        pairs[i].continuation = candidates[token].continuation;
      }
  }
  return pairs;
}

class TrainingModelTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, TrainingModelTest,
                         testing::Values("gpt2", "llama-gqa", "bloom", "retnet"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('-'));
                         });

TEST_P(TrainingModelTest, ScoresAreThoseOfAPlainForward) {
  for (const DType precision : {DType::F64, DType::F32}) {
    const Training training = training_of(GetParam(), false, precision);
    const auto pairs = with_greedy(training, requests_for(training.model.vocab_size));
    const auto plain = plain_scores(training, pairs);
    const double tolerance = precision == DType::F64 ? 1e-10 : 1e-5;
    expect_equal_scores(scores_on({}, training, pairs), plain, tolerance);
    EXPECT_GE(std::count_if(plain.begin(), plain.end(), [](auto one) { return one.is_greedy; }), 3);
    EXPECT_FALSE(plain[1].is_greedy && plain[2].is_greedy && plain[4].is_greedy);
    if (!training_of(GetParam(), true).has_documents()) continue;
    // With masks, requests that share a row do not see each other. The first step differs.
    const Training packed = training_of(GetParam(), true, precision);
    std::vector<ContinuationScore> apart;
    for (const TokenPair& pair : pairs)
      apart.push_back(scores_on({}, packed, std::span(&pair, 1)).front());
    expect_equal_scores(scores_on({}, packed, pairs), apart, tolerance);
  }
}

TEST_P(TrainingModelTest, ScoresAreTheSameInEveryLayout) {
  const std::vector<RankLayout> layouts = {
      {.tp = 2},
      {.tp = 2, .sequence_parallel = true},
      {.pp = 2},
      {.pp = 2, .chunks = 1, .schedule = PipelineKind::ZeroBubbleH1},
      {.cp = 2},
      {.dp = 2, .zero = 1},
      {.dp = 2, .zero = 3},
      {.dp = 2, .zero = 3, .tp = 2, .pp = 2}};
  for (const bool documents : {false, true}) {
    const Training training = training_of(GetParam(), documents);
    if (documents && !training.has_documents()) continue;
    const auto pairs = with_greedy(training, requests_for(training.model.vocab_size));
    const auto alone = scores_on({}, training, pairs);
    for (const RankLayout& layout : layouts) {
      SCOPED_TRACE(to_string(layout));
      expect_equal_scores(scores_on(layout, training, pairs), alone, 1e-9);
    }
  }
}

TEST(TrainingModel, OffloadedStateAndInputs) {
  Training training = training_of("llama-gqa", true);
  const auto pairs = requests_for(training.model.vocab_size);
  const auto expected = scores_on({}, training, pairs);
  training.offload = {.on = true, .gradients = true};
  training.recompute = Recompute::Full;
  training.offload_inputs = true;
  expect_equal_scores(scores_on({.dp = 2, .zero = 2}, training, pairs), expected, 1e-9);
}

// Rank 0 asks, the others follow: blocks of requests, their end, and an interrupt of all ranks.
TEST(LedModel, RankZeroAsksForAll) {
  const Training training = training_of("llama-gqa", false);
  const auto pairs = requests_for(training.model.vocab_size);
  const auto expected = scores_on({}, training, pairs);
  for (const int blocks_until_stop : {100, 1, 0}) {
    on_ranks({.dp = 2, .tp = 2}, training, [&](const Member& member) {
      member.step(1);
      TrainingModel model(member.engine, nullptr);
      int blocks = 0;
      LedModel led(
          model, member.groups[GroupKind::World], [&] { return blocks++ == blocks_until_stop; },
          12);
      if (member.world.rank() > 0) return led.follow();
      if (blocks_until_stop < 100) {
        EXPECT_THROW(led.score(pairs, {}), LedModel::Interrupted);
      } else {
        expect_equal_scores(led.score(pairs, {}), expected, 1e-9);
        EXPECT_GT(blocks, 3) << "12 tokens are few requests";
      }
      led.finish();
      led.finish();  // does nothing
    });
  }
}

// Scoring changes nothing that training uses.
TEST(TrainingModel, TrainingContinuesBitForBit) {
  for (const RankLayout& layout :
       {RankLayout{}, RankLayout{.dp = 2, .zero = 3, .tp = 2}, RankLayout{.pp = 2}}) {
    Training training = training_of("llama-gqa", true);
    training.dropout = 0.1;
    const auto pairs = requests_for(training.model.vocab_size);
    const auto losses = [&](bool scores) {
      std::vector<double> found;
      on_ranks(layout, training, [&](const Member& member) {
        TrainingModel model(member.engine, nullptr);
        for (std::int64_t step = 1; step <= 3; ++step) {
          const StepResult result = member.step(step);
          if (scores) model.score(pairs, {});
          if (member.world.rank() == 0) found.push_back(result.loss);
        }
      });
      return found;
    };
    EXPECT_EQ(losses(true), losses(false)) << to_string(layout);
  }
}

}  // namespace
}  // namespace kintsugi
