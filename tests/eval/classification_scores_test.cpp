#include "eval/classification_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace kintsugi {
namespace {

const std::vector<std::string> kNames = {"fi", "sv", "en", "unused"};

// fi: 3 of 4 right, one taken for sv; sv: 1 of 2 right, one taken for fi; en: 0 of 1, taken for sv.
ConfusionMatrix small_matrix() {
  ConfusionMatrix matrix(4);
  for (int i = 0; i < 3; ++i) matrix.add(0, 0);
  matrix.add(0, 1);
  matrix.add(1, 1);
  matrix.add(1, 0);
  matrix.add(2, 1);
  return matrix;
}

TEST(ClassificationScores, AreThoseOfHandArithmetic) {
  const ConfusionMatrix matrix = small_matrix();
  EXPECT_EQ(matrix.documents(), 7);
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 4.0 / 7);
  const LabelScore fi = matrix.score(0), sv = matrix.score(1), en = matrix.score(2);
  EXPECT_DOUBLE_EQ(fi.precision, 3.0 / 4);
  EXPECT_DOUBLE_EQ(fi.recall, 3.0 / 4);
  EXPECT_DOUBLE_EQ(fi.f1, 3.0 / 4);
  EXPECT_EQ(fi.documents, 4);
  EXPECT_DOUBLE_EQ(sv.precision, 1.0 / 3);
  EXPECT_DOUBLE_EQ(sv.recall, 1.0 / 2);
  EXPECT_DOUBLE_EQ(sv.f1, 2.0 / 5);
  EXPECT_DOUBLE_EQ(en.precision, 0);
  EXPECT_DOUBLE_EQ(en.f1, 0);
  // The label that neither occurs nor is predicted does not count.
  EXPECT_DOUBLE_EQ(matrix.macro_f1(), (3.0 / 4 + 2.0 / 5 + 0) / 3);
}

TEST(ClassificationScores, OfNothingAreZero) {
  const ConfusionMatrix matrix(3);
  EXPECT_EQ(matrix.accuracy(), 0);
  EXPECT_EQ(matrix.macro_f1(), 0);
}

TEST(ClassificationScores, OfManyLabelsNeedNoMatrix) {
  ConfusionMatrix matrix(100'000);
  EXPECT_EQ(matrix.counts().size(), 300'000U);
  matrix.add(99'999, 99'999);
  matrix.add(7, 99'999);
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 0.5);
  EXPECT_DOUBLE_EQ(matrix.score(99'999).precision, 0.5);
  EXPECT_DOUBLE_EQ(matrix.macro_f1(), (2.0 / 3 + 0) / 2);
}

TEST(ClassificationScores, ArePrintedByLabel) {
  const std::string table = scores_table(small_matrix(), kNames);
  EXPECT_THAT(table, testing::ContainsRegex("sv +0.3333 +0.5000 +0.4000 +2"));
  EXPECT_THAT(table, testing::ContainsRegex("\nfi +3 +1 +0 +0\n"));
  const auto json = nlohmann::json::parse(scores_json(small_matrix(), kNames, 40));
  EXPECT_EQ(json.at("step"), 40);
  EXPECT_EQ(json.at("documents"), 7);
  EXPECT_DOUBLE_EQ(json.at("micro_f1").get<double>(), 4.0 / 7);
  EXPECT_EQ(json.at("confusion_matrix")[1], (std::vector<int>{1, 1, 0, 0}));
  EXPECT_EQ(json.at("labels")[2].at("label"), "en");
}

TEST(ClassificationScores, PredictTheLargestLogit) {
  const std::vector<double> logits = {1.0, 3.0, 3.0, std::log(2.0) + 3.0};
  EXPECT_EQ(predicted_label(logits), 3);
  EXPECT_EQ(predicted_label(std::span(logits).first(3)), 1);
  const std::vector<double> large = {1000.0, 1000.0 + std::log(3.0)};
  EXPECT_NEAR(probabilities_of(large)[1], 0.75, 1e-12);
}

}  // namespace
}  // namespace kintsugi
