// Steps on garbage in the corpus are skipped as outliers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A regular text with some random bytes in the middle.
std::string corpus_with_garbage() {
  std::string text, garbage;
  for (int i = 0; i < 900; ++i) text += "one two three four five six.\n";
  std::uint32_t state = 7;
  for (int i = 0; i < 300; ++i) {
    state = state * 1664525u + 1013904223u;
    garbage += static_cast<char>(32 + (state >> 16) % 95);
  }
  return text.substr(0, text.size() / 2) + garbage + text.substr(text.size() / 2);
}

class SkipStep : public testing::Test {
 protected:
  RunConfig config(const fs::path& run, int steps, std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(), {"optimizer.skip_step.deviations=5",
                                         "optimizer.skip_step.window=20", "optimizer.lr=2e-2"});
    return parse_run_config(
        small_config(corpus_, run,
                     fmt::format("steps: {}, eval_every: 0, checkpoint_every: 1", steps)),
        "test.yaml", overrides);
  }
  static void train(const RunConfig& config) {
    const auto backend = make_cpu_backend(2);
    Trainer trainer(*backend, config);
    testing::internal::CaptureStdout();
    try {
      trainer.run(ResumeMode::Auto);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    testing::internal::GetCapturedStdout();
  }
  static std::vector<json> metrics(const fs::path& run) {
    std::ifstream file(run / "metrics.jsonl");
    std::vector<json> records;
    for (std::string line; std::getline(file, line);) records.push_back(json::parse(line));
    return records;
  }
  static std::string bytes_of(const fs::path& run, std::int64_t step) {
    const fs::path model = run / "checkpoints" / checkpoint_name(step);
    return read_text_file(model / "model.safetensors") +
           read_text_file(state_directory(model) / "optimizer.safetensors");
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", corpus_with_garbage());
  fs::path run_ = directory_ / "run";
};

// Mean and deviation of the records before `step`, at most `window`.
double limit_before(const std::vector<json>& records, std::size_t step, const char* key) {
  const std::size_t first = step < 20 ? 0 : step - 20;
  const auto count = static_cast<double>(step - first);
  double sum = 0, squares = 0;
  for (std::size_t i = first; i < step; ++i) sum += records[i].at(key).get<double>();
  for (std::size_t i = first; i < step; ++i)
    squares += std::pow(records[i].at(key).get<double>() - sum / count, 2);
  return sum / count * (1 + 1e-6) + 5 * std::sqrt(squares / (count - 1));
}

TEST_F(SkipStep, OutliersChangeNothingAndTheRunGoesOn) {
  train(config(run_, 90));
  const std::vector<json> records = metrics(run_);
  ASSERT_EQ(records.size(), 90u);
  int skipped = 0;
  for (std::size_t i = 1; i < records.size(); ++i) {
    const auto step = static_cast<std::int64_t>(i + 1);
    const bool outlier =
        i >= 10 && (records[i].at("loss") > limit_before(records, i, "loss") ||
                    records[i].at("grad_norm") > limit_before(records, i, "grad_norm"));
    EXPECT_EQ(records[i].value("skipped", ""), outlier ? "outlier" : "") << step;
    EXPECT_EQ(bytes_of(run_, step) == bytes_of(run_, step - 1), outlier) << step;
    skipped += outlier;
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 20);
}

TEST_F(SkipStep, IsOffByDefault) {
  train(config(run_, 90, {"optimizer.skip_step={deviations: 0, window: 128}"}));
  for (const json& record : metrics(run_)) EXPECT_FALSE(record.contains("skipped"));
  EXPECT_THAT(read_text_file(run_ / "checkpoints" / checkpoint_name(90) / "trainer.json"),
              Not(testing::HasSubstr("recent")));
}

// In the middle of the window, and before a step that is skipped.
TEST_F(SkipStep, ResumesBitForBit) {
  train(config(run_, 90));
  std::int64_t first = 0;
  for (const json& record : metrics(run_))
    if (first == 0 && record.contains("skipped")) first = record.at("step");
  ASSERT_GT(first, 6);
  const CheckpointPaths from{run_ / "checkpoints", checkpoint_name(first - 3)};
  const fs::path again = directory_ / "again";
  const CheckpointPaths to{again / "checkpoints", from.name};
  fs::create_directories(to.folder / "state");
  fs::copy(from.model(), to.model(), fs::copy_options::recursive);
  fs::copy(from.state(), to.state(), fs::copy_options::recursive);
  train(config(again, 90));
  EXPECT_TRUE(bytes_of(again, 90) == bytes_of(run_, 90));
  const auto trainer = [](const fs::path& run) {
    return read_text_file(run / "checkpoints" / checkpoint_name(90) / "trainer.json");
  };
  EXPECT_EQ(trainer(again), trainer(run_));
}

// Outliers do not end a run as steps that are not finite do, but too many in a row do.
TEST_F(SkipStep, TooManyInARowEndTheRun) {
  RunConfig strict =
      config(run_, 90, {"optimizer.skip_step.deviations=1e-9", "train.max_skipped_steps=2"});
  try {
    train(strict);
    FAIL() << "the run did not diverge";
  } catch (const Diverged& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("2 steps in a row had a loss or gradient norm "
                                                  "far above those of the steps before"),
                               testing::HasSubstr("raise optimizer.skip_step.deviations")));
  }
}

}  // namespace
}  // namespace kintsugi
