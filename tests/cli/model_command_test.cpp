#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/error.h"
#include "model/config.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

std::string output_of(std::vector<std::string> arguments) {
  CLI::App app;
  add_model_command(app);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
  testing::internal::CaptureStdout();
  try {
    app.parse(arguments);
  } catch (const UserError& error) {
    testing::internal::GetCapturedStdout();
    return std::string("error: ") + error.what();
  }
  return testing::internal::GetCapturedStdout();
}

TEST(ModelCommandTest, PrintsATable) {
  const std::string text = output_of({"model", "llama-8b", "--sequence-length", "8192"});
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("llama-8b: 8.03 B parameters"), ContainsRegex("hidden_size +4,096"),
            ContainsRegex("mlp +5,637,144,576 +70.2 %"), ContainsRegex("total +8,030,261,248")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("45.03 GFLOP"), HasSubstr("51.47 GFLOP"), HasSubstr("57.91 GFLOP")));
  EXPECT_THAT(text, AllOf(ContainsRegex("weights +14.96 GiB +29.92 GiB"),
                          ContainsRegex("master weights +29.92 GiB +-"),
                          ContainsRegex("Adam moments +59.83 GiB +59.83 GiB"),
                          ContainsRegex("per parameter +18 B +16 B")));
  EXPECT_THAT(output_of({"model", "llama-tiny"}),
              AllOf(HasSubstr("sequences of 512 tokens"), HasSubstr(" MFLOP")));
}

TEST(ModelCommandTest, PrintsJson) {
  const auto json =
      nlohmann::json::parse(output_of({"model", "llama-1b", "--sequence-length", "2k", "--json"}));
  EXPECT_EQ(json["name"], "llama-1b");
  EXPECT_EQ(json["config"]["family"], "llama");
  EXPECT_EQ(json["config"]["rope_scaling"]["factor"], 32.0);
  EXPECT_EQ(json["parameters"]["total"], 1'235'814'400);
  EXPECT_EQ(json["sequence_length"], 2000);
  EXPECT_EQ(json["state_bytes"]["bf16_mixed"]["weights"], 2 * 1'235'814'400LL);
  EXPECT_EQ(json["state_bytes"]["fp32"]["moments"], 8 * 1'235'814'400LL);
  EXPECT_LT(json["flops_per_token"]["causal"], json["flops_per_token"]["full"]);
}

TEST(ModelCommandTest, ListsThePresets) {
  const std::string text = output_of({"model", "--list"});
  for (const std::string& name : preset_names()) EXPECT_THAT(text, HasSubstr("\n" + name + " "));
  EXPECT_EQ(nlohmann::json::parse(output_of({"model", "--list", "--json"})),
            nlohmann::json(preset_names()));
}

TEST(ModelCommandTest, SaysWhatIsWrong) {
  EXPECT_THAT(output_of({"model"}), HasSubstr("error: kintsugi model needs"));
  EXPECT_THAT(output_of({"model", "llama-8b", "--list"}), HasSubstr("not both"));
  EXPECT_THAT(output_of({"model", "lama-8b"}), HasSubstr("did you mean 'llama-8b'"));
  EXPECT_THAT(output_of({"model", "llama-8b", "--sequence-length", "long"}),
              HasSubstr("error: 'long' is not a whole number"));
  EXPECT_THAT(output_of({"model", "llama-8b", "--sequence-length", "0"}),
              HasSubstr("must be positive"));
  EXPECT_THAT(output_of({"model", "gpt2-124m", "--sequence-length", "2048"}),
              HasSubstr("a table of 1024 positions"));
}

}  // namespace
}  // namespace kintsugi
