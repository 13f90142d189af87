// Which tokens have a loss, and which tokens attention sees.
#include "train/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "data/sampling/sample_reader.h"
#include "support/counting_store.h"

namespace kintsugi {
namespace {

using Tokens = std::vector<std::int32_t>;

const char* const kFamilies[] = {"llama", "gpt2", "bloom"};  // rotary, learned and ALiBi positions

EngineOptions options_of(const std::string& family, std::int64_t sequences, std::int64_t length,
                         bool documents = false, DType precision = DType::F64) {
  const ModelConfig model = parse_model_yaml(
      "family: " + family +
          "\nvocab_size: 64\nhidden_size: 16\nlayers: 2\nheads: 4\nmax_positions: 64\n",
      "test");
  return {.model = model,
          .precision = precision,
          .layout = {.micro_batch = sequences},
          .length = length,
          .documents = documents};
}

class EngineTest : public testing::TestWithParam<const char*> {
 protected:
  Engine& engine_of(const EngineOptions& options) {
    engines_.push_back(std::make_unique<Engine>(*backend_, *backend_, options));
    engines_.back()->initialize(5);
    return *engines_.back();
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
  std::vector<std::unique_ptr<Engine>> engines_;
};

INSTANTIATE_TEST_SUITE_P(Families, EngineTest, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

// Three documents packed in one window give the same losses and gradients as one by one.
TEST_P(EngineTest, DocumentsOfAPackedWindowDoNotSeeEachOther) {
  const TemporaryDirectory directory;
  const std::vector<Tokens> documents = {
      {5, 9, 2, 44, 17}, {3, 3, 60, 8, 1, 0, 29, 31, 7}, {50, 2, 12}};
  const TokenShard shard = TokenShard::open(write_store(directory, "docs", documents));
  const SampleOptions samples = {
      .length = 16, .vocab_size = 64, .document_mask = true, .boundary_loss = false};
  SampleBatch packed(1, samples);
  SampleReader(samples).read({{&shard, 0, 17}}, packed.row(0));
  const TokenBatch together = {packed.ids, packed.targets, packed.positions, packed.document_start};

  double apart = 0;
  for (const Tokens& document : documents) {
    const auto length = static_cast<std::int64_t>(document.size()) - 1;
    Engine& engine = engine_of(options_of(GetParam(), 1, length));
    apart += engine
                 .evaluate({std::span(document).first(document.size() - 1),
                            std::span(document).subspan(1)})
                 .front();
  }
  Engine& engine = engine_of(options_of(GetParam(), 1, 16, true));
  EXPECT_NEAR(engine.evaluate(together).front(), apart, 1e-10);

  // One document per row, padded with tokens without a loss.
  Tokens ids(24, 11), targets(24, -1);
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t i = 0; i + 1 < documents[row].size(); ++i) {
      ids[8 * row + i] = documents[row][i];
      targets[8 * row + i] = documents[row][i + 1];
    }
  const StepSettings settings{.step = 1, .lr = 1e-3};
  const StepResult one_row = engine.step(together, settings);
  for (const std::int64_t micro : {3, 1}) {
    Engine& padded = engine_of(options_of(GetParam(), micro, 8));
    const StepResult rows = padded.step({ids, targets}, settings);
    EXPECT_NEAR(one_row.loss, apart / 14, 1e-10);
    EXPECT_NEAR(rows.loss, apart / 14, 1e-10);
    EXPECT_NEAR(rows.gradient_norm, one_row.gradient_norm, 1e-9);
    EXPECT_NEAR(padded.evaluate({ids, targets}).front(), engine.evaluate(together).front(), 1e-8)
        << "one step on";
  }
}

// The loss of a sample with padding is the sum of the losses of its documents.
TEST_P(EngineTest, PaddingHasNoLossAndIsNotSeen) {
  const TemporaryDirectory directory;
  const std::vector<Tokens> documents = {{5, 9, 2, 44, 17}, {3, 3, 60, 8, 1, 0, 29}, {50, 2, 12}};
  const TokenShard shard = TokenShard::open(write_store(directory, "docs", documents));
  const SampleOptions samples = {.length = 20,
                                 .vocab_size = 64,
                                 .document_mask = true,
                                 .boundary_loss = false,
                                 .packed = true};
  SampleBatch packed(1, samples);
  SampleReader(samples).read({{&shard, 0, 5}, {&shard, 5, 7}, {&shard, 12, 3}}, packed.row(0));
  double apart = 0;
  for (const Tokens& document : documents) {
    const auto length = static_cast<std::int64_t>(document.size()) - 1;
    apart += engine_of(options_of(GetParam(), 1, length))
                 .evaluate({std::span(document).first(document.size() - 1),
                            std::span(document).subspan(1)})
                 .front();
  }
  Engine& engine = engine_of(options_of(GetParam(), 1, 20, true));
  const TokenBatch together = {packed.ids, packed.targets, packed.positions, packed.document_start};
  EXPECT_NEAR(engine.evaluate(together).front(), apart, 1e-12 * apart);
  // Other tokens in the padding change nothing, not even a gradient.
  const StepSettings settings{.step = 1, .lr = 1e-3};
  const StepResult zeros = engine.step(together, settings);
  EXPECT_NEAR(zeros.loss, apart / 12, 1e-12);
  Tokens other = packed.ids;
  for (std::size_t i = 15; i < 20; ++i) other[i] = static_cast<std::int32_t>(7 * i % 64);
  const StepResult numbers =
      engine_of(options_of(GetParam(), 1, 20, true))
          .step({other, packed.targets, packed.positions, packed.document_start}, settings);
  EXPECT_EQ(numbers.loss, zeros.loss);
  EXPECT_NEAR(numbers.gradient_norm, zeros.gradient_norm, 1e-13);
}

// Without the mask a document sees the documents before it.
TEST_P(EngineTest, TheMaskMakesADifference) {
  const Tokens ids = {5, 9, 2, 44, 17, 3, 3, 60}, targets = {9, 2, 44, -1, 3, 3, 60, 8};
  const Tokens positions = {0, 1, 2, 3, 0, 1, 2, 3}, starts = {0, 0, 0, 0, 4, 4, 4, 4};
  Engine& open = engine_of(options_of(GetParam(), 1, 8));
  Engine& masked = engine_of(options_of(GetParam(), 1, 8, true));
  EXPECT_GT(std::abs(open.evaluate({ids, targets}).front() -
                     masked.evaluate({ids, targets, positions, starts}).front()),
            1e-6);
}

TEST_P(EngineTest, AMicroBatchWithoutLossAddsNothing) {
  Tokens ids, targets;
  for (std::int32_t i = 0; i < 24; ++i) {
    ids.push_back(i * 7 % 64);
    targets.push_back(i < 8 || i % 5 == 0 ? -1 : i * 11 % 64);
  }
  const StepSettings settings{.step = 1, .lr = 1e-3};
  Engine& whole = engine_of(options_of(GetParam(), 3, 8));
  Engine& split = engine_of(options_of(GetParam(), 1, 8));
  const StepResult a = whole.step({ids, targets}, settings),
                   b = split.step({ids, targets}, settings);
  EXPECT_NEAR(a.loss, b.loss, 1e-11);
  EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-10);
  // The same without the empty row.
  Engine& rest = engine_of(options_of(GetParam(), 2, 8));
  const StepResult c =
      rest.step({std::span(ids).subspan(8), std::span(targets).subspan(8)}, settings);
  EXPECT_NEAR(a.loss, c.loss, 1e-11);
  EXPECT_NEAR(a.gradient_norm, c.gradient_norm, 1e-10);
}

TEST_P(EngineTest, AStepWithoutLossIsHarmless) {
  for (const DType precision : {DType::F32, DType::BF16}) {
    Engine& engine = engine_of(options_of(GetParam(), 1, 8, false, precision));
    const Tokens ids = {5, 9, 2, 44, 17, 3, 3, 60}, none(8, -1);
    const StepResult empty = engine.step({ids, none}, {.step = 1, .lr = 1e-3});
    EXPECT_EQ(empty.loss, 0.0);
    EXPECT_EQ(empty.gradient_norm, 0.0);
    EXPECT_EQ(engine.evaluate({ids, none}).front(), 0.0);
    const StepResult next = engine.step({ids, ids}, {.step = 2, .lr = 1e-3});
    EXPECT_TRUE(std::isfinite(next.loss) && next.loss > 1) << next.loss;
    EXPECT_TRUE(std::isfinite(next.gradient_norm) && next.gradient_norm > 0);
  }
}

// The loss is the weighted mean; scores stay as they are. Weights below 1 in sum count as they are.
TEST_P(EngineTest, WeightsOfLosses) {
  Tokens ids, targets;
  std::vector<float> weights;
  for (std::int32_t i = 0; i < 24; ++i) {
    ids.push_back(i * 7 % 64);
    targets.push_back(i % 5 == 0 ? -1 : i * 11 % 64);
    weights.push_back(static_cast<float>(i % 4) / 128);
  }
  EngineOptions options = options_of(GetParam(), 2, 8);
  options.weights = true;
  Engine& engine = engine_of(options);
  const TokenBatch batch{.ids = ids, .targets = targets, .weights = weights};
  double sum = 0, total = 0, plain = 0;
  engine.score(batch, [&](std::size_t token, double loss, double) {
    sum += weights[token] * loss;
    total += weights[token];
    plain += loss;
  });
  EXPECT_LT(total, 1);
  EXPECT_NEAR(plain, engine.evaluate({ids, targets}).front(), 1e-11);
  EXPECT_NEAR(engine.targets_of(batch), total, 1e-12);
  EXPECT_NEAR(engine.evaluate(batch).front(), sum, 1e-12);
  const StepResult weighted = engine.step(batch, {.step = 1, .lr = 1e-3});
  EXPECT_NEAR(weighted.loss, sum / total, 1e-12);
  // Twice the weights are the same run.
  std::vector<float> twice = weights;
  for (float& weight : twice) weight *= 2;
  const StepResult same = engine_of(options).step(
      {.ids = ids, .targets = targets, .weights = twice}, {.step = 1, .lr = 1e-3});
  EXPECT_NEAR(same.loss, weighted.loss, 1e-12);
  EXPECT_NEAR(same.gradient_norm, weighted.gradient_norm, 1e-11);
}

}  // namespace
}  // namespace kintsugi
