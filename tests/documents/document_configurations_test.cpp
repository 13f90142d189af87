// The configurations that the documents show are read without an error, and the defaults that they
// list are those of the program.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/markdown_document.h"
#include "support/paths.h"
#include "train/config/config.h"

namespace kintsugi {
namespace {

// Blocks that begin with these keys are other files: a task, a machine, a matrix of runs, a
// campaign.
const std::set<std::string> kOtherFiles = {"task", "topology", "matrix",
                                           "name", "campaign", "steps"};

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
      YAML::Node config;
      ASSERT_NO_THROW(config = YAML::Load(block.text())) << name << ", line " << block.line;
      ASSERT_TRUE(config.IsMap()) << name << ", line " << block.line;
      if (kOtherFiles.contains(config.begin()->first.as<std::string>())) continue;
      ++seen;
      EXPECT_EQ(error_of(completed(config)), "") << name << ", line " << block.line;
    }
  EXPECT_GT(seen, 25);
}

TEST(Documents, ExamplesAreValid) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_directory() + "/examples")) {
    if (entry.path().extension() != ".yaml") continue;
    ++seen;
    YAML::Node config = YAML::LoadFile(entry.path().string());
    config.remove("matrix");  // kintsugi launch reads it
    EXPECT_EQ(error_of(completed(config)), "") << entry.path();
  }
  EXPECT_GT(seen, 5);
}

struct DocumentedKey {
  std::string key, value;
};

std::vector<std::string> split_at_commas(const std::string& text) {
  static const std::regex comma(", (?![^\\[]*\\])");  // not those inside of a list
  return {std::sregex_token_iterator(text.begin(), text.end(), comma, -1), {}};
}

// Of the rows "| `train.ema.decay`, `every` | 0, 1 | …": the keys whose defaults are given.
std::vector<DocumentedKey> documented_keys(const std::string& page) {
  static const std::regex row(R"(\| (`[a-z0-9_.]+`(?:, `[a-z0-9_]+`)*) \| ([^|]+) \|.*)");
  std::vector<DocumentedKey> found;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    const auto plain = [](std::string text) {
      text = text.substr(0, text.find(';'));  // "`windows`; with examples `best_fit`"
      std::erase(text, '`');
      return text;
    };
    const auto names = split_at_commas(plain(match[1].str()));
    const auto values = split_at_commas(plain(match[2].str()));
    const std::string section = names[0].substr(0, names[0].rfind('.') + 1);
    for (std::size_t i = 0; i < names.size(); ++i)
      found.push_back({i == 0 ? names[i] : section + names[i],
                       values.size() == names.size() ? values[i] : values[0]});
  }
  return found;
}

TEST(Documents, DefaultsAreThoseOfTheProgram) {
  const std::string text = "model: {preset: llama-tiny}\ndata: {train: [{path: text.txt}]}\n";
  const auto defaults = config_values(parse_run_config(text, "defaults", {}));
  std::set<std::string> keys;
  for (const std::string& key : run_config_keys()) keys.insert(key);
  int seen = 0;
  for (const auto& [key, value] :
       documented_keys(content_of(source_directory() + "/docs/configuration.md"))) {
    if (!keys.contains(key)) continue;  // the tables of metrics have the same form
    ++seen;
    try {
      EXPECT_EQ(config_values(parse_run_config(text, "defaults", {key + "=" + value})), defaults)
          << key << ": " << value;
    } catch (const UserError& error) {
      ADD_FAILURE() << key << ": " << value << ": " << error.what();
    }
  }
  EXPECT_GT(seen, 120);
}

}  // namespace
}  // namespace kintsugi
