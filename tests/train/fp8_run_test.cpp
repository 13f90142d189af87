// Runs with train.fp8: what they write, and which configurations are refused.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "support/captured_log.h"
#include "support/config_text.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

std::vector<nlohmann::json> json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Fp8Run, CountsWhatIsLost) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const std::filesystem::path run = directory / "run";
  std::string log;
  {
    const CapturedLog captured;
    std::string config =
        small_config(corpus, run,
                     "steps: 7, eval_every: 0, save: false, precision: bf16, "
                     "fp8: {recipe: rowwise, statistics_every: 3, filter: [head, mlp.up]}");
    run_training(config.replace(config.find("length: 24"), 10, "length: 32"));
    log = captured.text();
  }
  EXPECT_NE(log.find("fp8, per-row scales: attention.out, attention.qkv, mlp.down of 2 layers"),
            std::string::npos)
      << log;
  const auto lines = json_lines(run / "fp8.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["step"], 6);
  EXPECT_EQ(lines[1].size(), 1u + 2 * 3) << "three matmuls of each layer";
  for (const char* operand : {"input", "gradient", "weight"}) {
    const auto& counts = lines[1]["layers.1.mlp.down"][operand];
    EXPECT_GT(counts["amax"], 0) << operand;
    EXPECT_LT(counts["underflow"], 0.2) << operand;
    EXPECT_LT(counts["saturated"], 0.2) << operand;
  }
  for (const auto& step : json_lines(run / "metrics.jsonl"))
    EXPECT_EQ(step.contains("fp8_amax"), step["step"] == 3 || step["step"] == 6) << step;
}

TEST(Fp8Run, RefusesWhatItCannotDo) {
  using config_text::error_of;
  const std::string text = config_text::kShort + "train: {precision: bf16}\n";
  const auto complains = [&](const std::vector<std::string>& set, const std::string& about) {
    const std::string error = error_of(text, set);
    EXPECT_NE(error.find(about), std::string::npos) << error;
  };
  complains({"train.fp8.wgrad=false"}, "train.fp8.recipe is none");
  for (const char* precision : {"fp16", "fp64"})
    complains({"train.fp8.recipe=rowwise", std::string("train.precision=") + precision},
              "train.fp8 needs bf16");
  complains({"train.fp8.recipe=rowwise", "data.sequence_length=100"},
            "data.sequence_length is 100, but train.fp8 needs a multiple of 16: use 112");
  complains({"train.fp8.recipe=rowwise", "data.sequence_length=48", "layout.cp=2"},
            "needs a multiple of 32 (16 tokens on each of 2 context ranks): use 64");
  complains({"train.fp8.recipe=rowwise", "train.fp8.filter=[head, mlp.donw]"},
            "did you mean 'mlp.down'?");
  complains({"train.fp8.recipe=rowwise", "train.fp8.filter=[mlp.down]"}, "must include head");
  complains({"train.fp8.recipe=rowwise", "train.fp8.bf16_layers.first=1000"}, "leave no matmul");
  complains({"train.fp8.recipe=blockwise"}, "rowwise");
}

}  // namespace
}  // namespace kintsugi
