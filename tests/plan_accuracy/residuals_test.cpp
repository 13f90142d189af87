// Intervals of predicted step times: how they are learned, and whether they hold.
#include "plan_accuracy/residuals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/paths.h"
#include "support/sanitizers.h"

namespace kintsugi {
namespace {

Residual residual(const char* dataset, double predicted, double measured,
                  const char* layout = "tp1") {
  return {.kind = StepKind::Node,
          .dataset = dataset,
          .job = dataset,
          .layout = layout,
          .predicted = predicted,
          .measured = measured};
}

TEST(Residuals, QuantilesByHand) {
  EXPECT_EQ(weighted_quantile({{3, 1}, {1, 1}, {2, 1}, {4, 1}}, 0.5), 2);
  EXPECT_EQ(weighted_quantile({{3, 1}, {1, 1}, {2, 1}, {4, 1}}, 0.51), 3);
  EXPECT_EQ(weighted_quantile({{1, 6}, {2, 3}, {9, 1}}, 0.9), 2);
  EXPECT_EQ(weighted_quantile({}, 0.9), 0);
}

// 19 rows with errors of 1 to 19 %, too slow and too fast: 18 of 19 are the 90 % of the next one.
// A second source with two rows weighs as much as the first.
TEST(Residuals, IntervalsByHand) {
  std::vector<Residual> rows;
  for (int i = 1; i <= 19; ++i) {
    const double factor = 1 + 0.01 * i;
    rows.push_back(residual("a", 10, i % 2 == 0 ? 10 * factor : 10 / factor));
  }
  std::vector<StepInterval> learned = learn_intervals(rows);
  ASSERT_EQ(learned.size(), 1u);
  EXPECT_EQ(learned[0].rows, 19);
  EXPECT_NEAR(learned[0].within, 1.18, 1e-3);
  EXPECT_NEAR(coverage(learned, rows), 18.0 / 19, 1e-9);
  rows.push_back(residual("b", 1, 1.5));
  rows.push_back(residual("b", 1, 1.6));
  learned = learn_intervals(rows);
  EXPECT_NEAR(learned[0].within, 1.6, 1e-3);
}

// What is wrong in the same way in two layouts does not blur their difference.
TEST(Residuals, DifferencesOfAJob) {
  std::vector<Residual> rows;
  const char* layouts[] = {"tp1", "tp2", "tp4", "tp8", "pp2", "pp4"};
  for (int i = 0; i < 6; ++i) rows.push_back(residual("a", 10 + i, 2 * (10 + i), layouts[i]));
  const std::vector<StepInterval> learned = learn_intervals(rows);
  EXPECT_NEAR(learned[0].within, 2, 2e-3);
  EXPECT_NEAR(learned[0].apart, 1, 2e-3);
}

// The rows that layouts.csv has of programs without slow messages.
const std::vector<Residual>& published() {
  static const std::vector<Residual> rows = [] {
    const std::string file = source_directory() + "/bench/published/layouts.csv";
    const CsvTable table(content_of(file), file);
    std::vector<RowPrediction> predictions(table.rows());
    for (std::size_t i = 0; i < table.rows(); ++i) {
      const MeasuredRow row = read_row(table, i);
      const bool slow = row.program.slow_nodes > 0 && !row.layouts.empty() &&
                        row.layouts[0].pp > 1 && row.layouts[0].ranks() > row.machine.node.gpus;
      if (table.at(i, "status") == "measured" && !slow) predictions[i] = predict(row);
    }
    return residuals(table, predictions);
  }();
  return rows;
}

std::vector<Residual> half(bool fitted) {
  std::vector<Residual> rows;
  for (const Residual& row : published())
    if (row.fitted == fitted) rows.push_back(row);
  return rows;
}

// What one half teaches holds 90 % of the other: within five points for all rows, and ten for a
// kind with at least 30.
TEST(PublishedIntervals, HoldTheOtherHalf) {
  KINTSUGI_SKIP_UNDER_SANITIZERS();
  for (const bool fitted : {true, false}) {
    const std::vector<StepInterval> learned = learn_intervals(half(fitted));
    const std::vector<Residual> others = half(!fitted);
    EXPECT_NEAR(coverage(learned, others), 0.9, 0.05) << fitted;
    for (const StepInterval& one : learned) {
      std::vector<Residual> rows;
      for (const Residual& row : others)
        if (row.kind == one.kind) rows.push_back(row);
      if (rows.size() < 30) continue;
      EXPECT_NEAR(coverage(learned, rows), 0.9, 0.1) << YamlScalar<StepKind>::format(one.kind);
    }
  }
}

// The table in the program is what the rows teach today.
TEST(PublishedIntervals, AreThoseOfTheProgram) {
  KINTSUGI_SKIP_UNDER_SANITIZERS();
  const std::vector<StepInterval> learned = learn_intervals(published());
  ASSERT_EQ(learned.size(), step_intervals().kinds.size());
  for (const StepInterval& one : learned) {
    const StepInterval& shipped = step_intervals().of(one.kind);
    EXPECT_EQ(one.rows, shipped.rows);
    EXPECT_NEAR(one.within, shipped.within, 0.002);
    EXPECT_NEAR(one.apart, shipped.apart, 0.002);
  }
}

// Of two layouts of a job that are told apart, the one that is predicted to be faster is faster.
TEST(PublishedIntervals, DifferencesMeanSomething) {
  KINTSUGI_SKIP_UNDER_SANITIZERS();
  int right = 0, pairs = 0;
  for (const Residual& a : published())
    for (const Residual& b : published()) {
      if (a.job != b.job || a.layout == b.layout || a.predicted >= b.predicted) continue;
      const double apart =
          std::max(step_intervals().of(a.kind).apart, step_intervals().of(b.kind).apart);
      if (b.predicted <= apart * a.predicted) continue;
      ++pairs;
      right += a.measured < b.measured ? 1 : 0;
    }
  EXPECT_GT(pairs, 500);
  EXPECT_GE(right, 0.9 * pairs) << right << " of " << pairs;
}

}  // namespace
}  // namespace kintsugi
