// The configurations that the documents show are read without an error: every key and value exists.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "core/error.h"
#include "support/markdown_document.h"
#include "support/paths.h"
#include "train/config/config.h"

namespace kintsugi {
namespace {

// Blocks that begin with these keys are other files: a task, a machine, a matrix of runs, a part of
// a section.
const std::set<std::string> kOtherFiles = {"task", "topology", "matrix", "name", "command"};

// With what the block leaves out, and a preset for weights that are not here.
std::string completed(YAML::Node config) {
  if (!config["model"] || config["model"]["init"])
    config["model"] = YAML::Load("{preset: llama-8b}");
  if (!config["data"] || !config["data"]["train"])
    config["data"]["train"] = YAML::Load("[{path: text.txt}]");
  if (config["data"]["tokenizer"]) config["data"]["tokenizer"] = "bytes";
  return YAML::Dump(config);
}

std::string error_of(const std::string& text) {
  try {
    parse_run_config(text, "block", {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Documents, ConfigurationsAreValid) {
  int seen = 0;
  for (const std::string& name : markdown_documents())
    for (const CodeBlock& block : markdown_document(name).blocks) {
      if (block.language != "yaml") continue;
      const YAML::Node config = YAML::Load(block.text());
      ASSERT_TRUE(config.IsMap()) << name << ", line " << block.line;
      if (kOtherFiles.contains(config.begin()->first.as<std::string>())) continue;
      ++seen;
      EXPECT_EQ(error_of(completed(config)), "") << name << ", line " << block.line;
    }
  EXPECT_GT(seen, 25);
}

}  // namespace
}  // namespace kintsugi
