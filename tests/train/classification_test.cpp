// Training of classifiers: steps of PyTorch, initial weights, and a whole run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "support/classifier_fixture.h"
#include "support/errors.h"
#include "train/engine.h"
#include "train/initial_weights.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

EngineOptions classifier_options(const ClassifierFixture& fixture, bool packed, bool weighted) {
  return {.model = fixture.config,
          .layout = {.micro_batch = 2},
          .batch = packed ? 2 : fixture.rows,
          .length = packed ? 2 * fixture.length : fixture.length,
          .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0},
          .documents = true,
          .weights = weighted};
}

// The rows of a step, each with a document and its label; `packed`: two documents in each row.
struct ClassifierBatch {
  std::vector<std::int32_t> ids, targets, positions, starts;
  std::vector<float> weights;

  ClassifierBatch(const ClassifierFixture& fixture, std::int64_t step, bool packed) {
    const auto all_ids = fixture.integers("ids"), lengths = fixture.integers("lengths"),
               labels = fixture.integers("labels");
    const auto class_weights = fixture.floats("class_weights");
    std::int32_t start = 0;
    for (std::int64_t row = 0; row < fixture.rows; ++row) {
      const auto at = static_cast<std::size_t>(step * fixture.rows + row);
      const bool ends_row = !packed || row % 2 == 1;
      for (std::int32_t i = 0; i < lengths[at]; ++i) {
        const bool last = i + 1 == lengths[at];
        add(all_ids[at * static_cast<std::size_t>(fixture.length) + static_cast<std::size_t>(i)],
            last ? labels[at] : -1, i, start,
            last ? class_weights[static_cast<std::size_t>(labels[at])] : 0.0F);
      }
      start += lengths[at];
      const std::int64_t room = packed ? 2 * fixture.length : fixture.length;
      if (!ends_row) continue;
      for (std::int32_t i = 0; start + i < room; ++i) add(0, -1, i, start, 0.0F);
      start = 0;
    }
  }
  void add(std::int32_t id, std::int32_t target, std::int32_t position, std::int32_t start,
           float weight) {
    ids.push_back(id);
    targets.push_back(target);
    positions.push_back(position);
    starts.push_back(start);
    weights.push_back(weight);
  }
};

struct StepCase {
  const char* family;
  bool packed, weighted;
};
class ClassifierSteps : public testing::TestWithParam<StepCase> {};

TEST_P(ClassifierSteps, AreThoseOfPyTorch) {
  const auto& [family, packed, weighted] = GetParam();
  const ClassifierFixture fixture(family);
  const auto backend = make_cpu_backend(2);
  Engine engine(*backend, *backend, classifier_options(fixture, packed, weighted));
  engine.prepare();
  load_initial_weights(fixture.directory(), engine);
  const auto losses = fixture.floats(weighted ? "weighted_losses" : "losses"),
             norms = fixture.floats(weighted ? "weighted_norms" : "norms");
  for (std::int64_t step = 0; step < fixture.steps; ++step) {
    const ClassifierBatch batch(fixture, step, packed);
    TokenBatch tokens{.ids = batch.ids,
                      .targets = batch.targets,
                      .positions = batch.positions,
                      .document_start = batch.starts};
    if (weighted) tokens.weights = batch.weights;
    const StepResult result = engine.step(tokens, {.step = step + 1, .lr = 1e-3});
    const auto at = static_cast<std::size_t>(step);
    EXPECT_NEAR(result.loss, losses[at], 1e-5 * std::max(1.0F, losses[at])) << step;
    EXPECT_NEAR(result.gradient_norm, norms[at], 1e-4 * norms[at]) << step;
  }
}
INSTANTIATE_TEST_SUITE_P(Runs, ClassifierSteps,
                         testing::Values(StepCase{"llama", false, false},
                                         StepCase{"llama", true, true},
                                         StepCase{"gpt2", true, false},
                                         StepCase{"gpt2", false, true}));

TEST(Classification, EngineGivesTheLogitsOfPyTorch) {
  const ClassifierFixture fixture("llama");
  const auto backend = make_cpu_backend(1);
  Engine engine(*backend, *backend, classifier_options(fixture, true, false));
  engine.prepare();
  load_initial_weights(fixture.directory(), engine);
  const ClassifierBatch batch(fixture, 0, true);
  std::vector<double> logits;
  engine.classify({.ids = batch.ids,
                   .targets = batch.targets,
                   .positions = batch.positions,
                   .document_start = batch.starts},
                  [&](std::size_t token, std::span<const double> own) {
                    EXPECT_GE(batch.targets[token], 0);
                    logits.insert(logits.end(), own.begin(), own.end());
                  });
  const auto expected = fixture.floats("logits");
  ASSERT_EQ(logits.size(), expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], expected[i], 1e-5);
}

// The first weights of an engine's parameter.
std::vector<float> weights_of(Engine& engine, const std::string& name) {
  const ParameterSet& set = engine.parameters();
  const Tensor weight = engine.sharding().store().weight(set.index(name));
  std::vector<float> values(static_cast<std::size_t>(weight.elements()));
  engine.backend().download(values.data(), weight);
  return values;
}

TEST(Classification, ALanguageModelGetsANewHead) {
  const ClassifierFixture fixture("gpt2");  // whose own head is tied to the embedding
  const auto backend = make_cpu_backend(1);
  Engine engine(*backend, *backend, classifier_options(fixture, false, false));
  engine.prepare();
  EXPECT_THAT(load_initial_weights(fixture.base(), engine, {.seed = 5}).description,
              HasSubstr("new classifier head with 2 labels"));
  const std::vector<float> first = weights_of(engine, "score.weight");
  double squares = 0;
  for (const float value : first) squares += static_cast<double>(value) * value;
  const double std = std::sqrt(squares / static_cast<double>(first.size()));
  EXPECT_NEAR(std, fixture.config.init_std, 0.3 * fixture.config.init_std);
  const RawModel base = read_raw_model(fixture.base());
  const std::vector<float> table = weights_of(engine, "transformer.wte.weight");
  EXPECT_EQ(std::vector<double>(table.begin(), table.end()),
            base.at("transformer.wte.weight").values);
  load_initial_weights(fixture.base(), engine, {.seed = 5});
  EXPECT_EQ(weights_of(engine, "score.weight"), first);
  load_initial_weights(fixture.base(), engine, {.seed = 6});
  EXPECT_NE(weights_of(engine, "score.weight"), first);
}

}  // namespace
}  // namespace kintsugi
