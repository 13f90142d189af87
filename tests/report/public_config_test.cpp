// What viewers show of a configuration with a secret.

#include <gtest/gtest.h>

#include <algorithm>

#include "report/runs/config_differences.h"
#include "train/config/config.h"

namespace kintsugi {
namespace {

constexpr const char* kSecretConfig =
    "data: {train: [{path: a.txt}]}\n"
    "model: {preset: llama-tiny}\n"
    "run:\n"
    "  dir: runs/a\n"
    "  notify:\n"
    "    command: \"curl -H 'token: s3cret' -d @- https://a\"\n"
    "    webhook: http://hooks.example/s3cret\n"
    "    on: [failed]\n";

bool tells_secret(const std::string& text) { return text.find("s3cret") != std::string::npos; }

TEST(PublicConfig, HidesTheCommandAndTheAddress) {
  const std::string text = public_config(
      "run:\n  dir: runs/a\n  notify:\n    command: \"curl 's3cret\n\n      s3cret'\"\n"
      "    webhook: http://a/s3cret\n    on: [failed]\nseed: 1\n");
  EXPECT_EQ(text,
            "run:\n  dir: runs/a\n  notify:\n    command: (set)\n    webhook: (set)\n"
            "    on: [failed]\nseed: 1\n");
}

TEST(PublicConfig, WhatIsNotSetStaysAsItIs) {
  const std::string text = "run:\n  notify:\n    command: null\n    webhook: null\nseed: 1\n";
  EXPECT_EQ(public_config(text), text);
  EXPECT_EQ(public_config(""), "");
}

TEST(PublicConfig, OtherFormsOfTheFileTellNothingEither) {
  for (const std::string text :
       {"run:\n  notify: {command: s3cret}\n",
        "run:\n  notify: {\n    command: s3cret,\n    webhook: s3cret}\n",
        "run: {dir: a, notify: {command: s3cret}}\n", "run:\n  notify:\n    \"command\": s3cret\n",
        "run:\n  notify:\n    ? command\n    : s3cret\n",
        "run:\n  notify:\n    command: >\n      s3cret\n\n      s3cret\n",
        "run:\n  notify:\n    command: s3cret\n   broken: [\n"})
    EXPECT_FALSE(tells_secret(public_config(text))) << public_config(text);
}

TEST(PublicConfig, ARunsOwnFileIsShownButForTheSecret) {
  const std::string text = to_yaml(parse_run_config(kSecretConfig, "run.yaml"));
  ASSERT_TRUE(tells_secret(text));
  const std::string shown = public_config(text);
  EXPECT_FALSE(tells_secret(shown)) << shown;
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'),
            std::count(text.begin(), text.end(), '\n'));
}

TEST(PublicConfig, ComparisonsHideThemToo) {
  const ConfigValues values = config_values(kSecretConfig);
  EXPECT_EQ(values.at("run.notify.command"), "(set)");
  EXPECT_EQ(values.at("run.notify.webhook"), "(set)");
  EXPECT_EQ(values.at("run.notify.on"), "[failed]");
  EXPECT_EQ(config_values("run: {notify: {command: null}}").at("run.notify.command"), "null");
}

}  // namespace
}  // namespace kintsugi
