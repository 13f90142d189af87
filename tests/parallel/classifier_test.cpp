// Classifiers are trained alike in every layout, also with fewer labels than tensor ranks.
#include <gtest/gtest.h>

#include "support/parallel_run.h"

namespace kintsugi {
namespace {

struct ClassifierCase {
  const char* model;
  int labels;
  RankLayout layout;
  bool documents = false;
};

Training classifier_training(const ClassifierCase& c) {
  Training training{.model = tiny_model(c.model, 4),
                    .sequences = 8,
                    .micro = 2,
                    .length = 8,
                    .documents = c.documents,
                    .masked = true};
  for (int i = 0; i < c.labels; ++i) training.model.labels.push_back(std::to_string(i));
  training.model.complete_and_check();
  return training;
}

// Two steps, and the predictions of the trained model.
struct ClassifierOutcome {
  Outcome outcome;
  std::vector<double> counts;
};

ClassifierOutcome trained_classifier(const RankLayout& layout, const Training& training) {
  ClassifierOutcome result;
  on_ranks(layout, training, [&](const Member& member) {
    train(member, 1, 2, result.outcome);
    ConfusionMatrix matrix = member.classify(3);
    if (member.groups.is_first())
      result.counts.assign(matrix.counts().begin(), matrix.counts().end());
  });
  return result;
}

class ClassifierLayouts : public testing::TestWithParam<ClassifierCase> {};

TEST_P(ClassifierLayouts, AreAsOneProcess) {
  const ClassifierCase& c = GetParam();
  const Training training = classifier_training(c);
  const ClassifierOutcome alone = trained_classifier({}, training),
                          shared = trained_classifier(c.layout, training);
  expect_same(shared.outcome, alone.outcome, to_string(c.layout));
  EXPECT_EQ(shared.counts, alone.counts);
  double documents = 0;
  for (int i = 0; i < c.labels; ++i) documents += alone.counts[static_cast<std::size_t>(i)];
  EXPECT_GT(documents, 8);
}
INSTANTIATE_TEST_SUITE_P(
    Layouts, ClassifierLayouts,
    testing::Values(
        ClassifierCase{"llama-tied", 2, {.tp = 4}},
        ClassifierCase{"gpt2", 3, {.tp = 4, .sequence_parallel = true}, true},
        ClassifierCase{"llama-gqa", 5, {.zero = 1, .tp = 2, .pp = 2}, true},
        ClassifierCase{"bloom", 3, {.dp = 2, .zero = 3, .cp = 2}, true},
        ClassifierCase{
            "qwen2", 2, {.dp = 2, .zero = 2, .pp = 2, .schedule = PipelineKind::ZeroBubbleH1}}));

}  // namespace
}  // namespace kintsugi
