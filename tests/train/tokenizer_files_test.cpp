#include "train/checkpoint/tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "data/tokenizers/tokenizer_formats.h"
#include "support/counting_store.h"
#include "support/directory_contents.h"
#include "support/paths.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

constexpr Family kTokenizerFamilies[] = {Family::Gpt2, Family::Llama, Family::Qwen2, Family::Qwen3,
                                         Family::Bloom};

ModelConfig model_of(Family family) {
  ModelConfig model;
  model.family = family;
  model.vocab_size = 1024;
  model.hidden_size = 32;
  model.layers = model.heads = 2;
  model.max_positions = 64;
  model.complete_and_check();
  return model;
}

std::map<std::string, std::string> written(const Tokenizer& tokenizer, Family family) {
  std::map<std::string, std::string> files;
  for (const Tokenizer::File& file : tokenizer_files(tokenizer, model_of(family)))
    EXPECT_TRUE(files.emplace(file.name, file.content).second) << file.name << " twice";
  return files;
}

// The class that AutoTokenizer.from_pretrained of transformers 5.8 and later chooses without
// trust_remote_code. "generic" uses tokenizer.json unchanged; the others replace its normalizer and
// pre-tokenizer.
std::string chosen_class(const std::string& model_type, const Json& config) {
  static const std::map<std::string, std::string> own = {
      {"gpt2", "GPT2Tokenizer"}, {"qwen2", "Qwen2Tokenizer"}, {"qwen3", "Qwen2Tokenizer"}};
  static const std::set<std::string> overruled = {"qwen2"};
  const auto without_fast = [](std::string name) {
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    return name == "PreTrainedTokenizer" ? "generic" : name;
  };
  const std::string named = without_fast(config.value("tokenizer_class", ""));
  const auto registered = own.find(model_type);
  const bool brings_class = config.contains("auto_map");
  if (!brings_class && !named.empty() && registered != own.end() && registered->second != named)
    return overruled.contains(model_type) ? registered->second : named;
  if (!named.empty()) return named;
  return registered == own.end() ? "generic" : registered->second;
}

// Known choices of transformers, to check the function above.
TEST(TokenizerFiles, TheRuleOfTransformersMatchesKnownChoices) {
  const Json generic = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  EXPECT_EQ(chosen_class("qwen2", generic), "Qwen2Tokenizer");
  for (const char* type : {"gpt2", "llama", "qwen3", "bloom"})
    EXPECT_EQ(chosen_class(type, generic), "generic") << type;
}

TEST(TokenizerFiles, AutoTokenizerTakesTokenizerJsonAsItIsInEveryFamily) {
  const char* given[] = {
      "", R"({"tokenizer_class": "Qwen2Tokenizer"})",
      R"({"tokenizer_class": "LlamaTokenizerFast", "legacy": true})",
      R"({"tokenizer_class": "GPT2Tokenizer", "auto_map": {"AutoTokenizer": ["a.B", null]}})"};
  for (const Family family : kTokenizerFamilies)
    for (const char* config : given)
      for (const char* name : {"qwen", "llama3", "gpt2_prefix"}) {
        TemporaryDirectory directory;
        directory.write("tokenizer.json", read_text_file(test_data_directory() + "/tokenizers/" +
                                                         name + "/tokenizer.json"));
        if (*config != 0) directory.write("tokenizer_config.json", config);
        const auto files = written(*load_tokenizer(directory.path().string()), family);
        const Json result = Json::parse(files.at("tokenizer_config.json"));
        SCOPED_TRACE(result.dump());
        EXPECT_EQ(chosen_class(std::string(to_string(family)), result), "generic");
        // Version 4 reads this here instead of in tokenizer.json.
        if (name == std::string("gpt2_prefix")) {
          EXPECT_EQ(result.at("add_prefix_space"), true);
        }
        if (!result.contains("auto_map")) continue;
        // With trust_remote_code, the class must be in the directory.
        EXPECT_EQ(
            result.at("auto_map"),
            Json::parse(R"({"AutoTokenizer": [null, "tokenization_kintsugi.KintsugiTokenizer"]})"));
        EXPECT_THAT(files.at("tokenization_kintsugi.py"),
                    HasSubstr("class KintsugiTokenizer(PreTrainedTokenizerFast):"));
      }
}

TEST(TokenizerFiles, ASentencePieceModelKeepsTheClassThatReadsIt) {
  const auto tokenizer = load_tokenizer(test_data_directory() + "/tokenizers/sentencepiece_bpe");
  for (const Family family : kTokenizerFamilies) {
    const auto files = written(*tokenizer, family);
    const Json config = Json::parse(files.at("tokenizer_config.json"));
    EXPECT_EQ(chosen_class(std::string(to_string(family)), config), "LlamaTokenizer");
    EXPECT_TRUE(files.contains("tokenizer.model"));
    EXPECT_FALSE(files.contains("tokenizer.json"));
    EXPECT_EQ(config.at("model_max_length"), 64);
  }
}

class GivenTokenizer : public testing::Test {
 protected:
  GivenTokenizer() {
    std::filesystem::create_directories(given_ / "additional_chat_templates");
    write("tokenizer.json", byte_pairs());
    write("tokenizer_config.json",
          R"({"model_max_length": 48, "pad_token": "<pad>", "chat_template": "{{ messages }}",
              "tokenizer_class": "Qwen2Tokenizer", "odd": [1, {"two": null}]})");
    for (const char* name :
         {"special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.json",
          "merges.txt", "tokenizer.model", "additional_chat_templates/tool_use.jinja"})
      write(name, std::string("the content of ") + name);
  }
  void write(const std::string& name, const std::string& content) {
    directory_.write("given/" + name, content);
    if (name != "tokenizer_config.json") expected_[name] = content;
  }
  static std::string byte_pairs() {
    return read_text_file(test_data_directory() + "/tokenizers/gpt2/tokenizer.json");
  }

  TemporaryDirectory directory_;
  std::filesystem::path given_ = directory_ / "given";
  std::map<std::string, std::string> expected_;
};

TEST_F(GivenTokenizer, IsCopiedIntoItsCheckpointFileByFile) {
  const auto tokenizer = load_tokenizer(given_.string());
  auto files = written(*tokenizer, Family::Llama);
  const Json config = Json::parse(files.at("tokenizer_config.json"));
  files.erase("tokenizer_config.json");
  EXPECT_EQ(files, expected_);
  EXPECT_EQ(config.at("model_max_length"), 48);
  EXPECT_EQ(config.at("pad_token"), "<pad>");
  EXPECT_EQ(config.at("chat_template"), "{{ messages }}");
  EXPECT_EQ(config.at("odd"), Json::parse(R"([1, {"two": null}])"));
  EXPECT_EQ(tokenizer->clone()->files(9), tokenizer->files(9));
}

TEST_F(GivenTokenizer, HasNoMorePositionsThanATableOfPositions) {
  write("tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  const auto tokenizer = load_tokenizer(given_.string());
  const auto length = [&](Family family) {
    return Json::parse(written(*tokenizer, family).at("tokenizer_config.json"))
        .at("model_max_length");
  };
  EXPECT_EQ(length(Family::Gpt2), 64);
  EXPECT_EQ(length(Family::Llama).get<double>(), 1e30);
}

TEST_F(GivenTokenizer, OfAModelFileLeavesTheOtherTokenizerBehind) {
  const std::string model =
      read_text_file(test_data_directory() + "/tokenizers/sentencepiece_bpe/tokenizer.model");
  write("tokenizer.model", model);
  write("tokenizer_config.json", R"({"pad_token": "</s>"})");
  const auto files = written(*load_tokenizer((given_ / "tokenizer.model").string()), Family::Llama);
  EXPECT_EQ(files.at("tokenizer.model"), model);
  EXPECT_EQ(files.at("chat_template.jinja"), expected_.at("chat_template.jinja"));
  for (const char* other : {"tokenizer.json", "vocab.json", "merges.txt"})
    EXPECT_FALSE(files.contains(other)) << other;
  EXPECT_EQ(Json::parse(files.at("tokenizer_config.json")).at("pad_token"), "</s>");
}

TEST_F(GivenTokenizer, WithABrokenConfigurationIsRefused) {
  write("tokenizer.model",
        read_text_file(test_data_directory() + "/tokenizers/sentencepiece_bpe/tokenizer.model"));
  for (const char* broken : {"", "[1]", "{\"a\": "}) {
    write("tokenizer_config.json", broken);
    const auto tokenizer = load_tokenizer((given_ / "tokenizer.model").string());
    EXPECT_THROW(written(*tokenizer, Family::Llama), UserError) << broken;
  }
}

// After a run, the checkpoint contains all files, with checksums.
TEST_F(GivenTokenizer, IsPartOfTheCheckpointOfARun) {
  std::vector<std::vector<std::int32_t>> documents(20);
  for (auto& document : documents)
    load_tokenizer(given_.string())->encode(small_corpus(5), document);
  const std::string store = write_store(directory_, "store", documents);
  const auto run = directory_ / "run";
  const auto backend = make_cpu_backend(1);
  Trainer trainer(*backend,
                  parse_run_config(small_config(store, run, "steps: 1, eval_every: 0"), "test.yaml",
                                   {"optimizer.warmup_steps=1", "model.family=qwen2",
                                    "model.vocab_size=1024", "data.tokenizer=" + given_.string()}));
  testing::internal::CaptureStdout();
  trainer.run(ResumeMode::Auto);
  testing::internal::GetCapturedStdout();
  const auto checkpoint = run / "checkpoints/step-00000001";
  const auto saved = directory_contents(checkpoint);
  const Json listed = Json::parse(saved.at("checksums.json")).at("files");
  for (const auto& [name, content] : expected_) {
    ASSERT_TRUE(saved.contains(name)) << name;
    EXPECT_EQ(saved.at(name), content) << name;
    EXPECT_TRUE(listed.contains(name)) << name;
  }
  EXPECT_TRUE(listed.contains("tokenization_kintsugi.py"));
  EXPECT_EQ(load_tokenizer(checkpoint.string())->fingerprint(),
            load_tokenizer(given_.string())->fingerprint());
}

// The format of the training data replaces another one, and begins with BOS where prompts do.
TEST(TokenizerFiles, HaveTheChatTemplateOfTheTrainingData) {
  const TemporaryDirectory directory;
  directory.write("tokenizer.json", byte_tokenizer_json());
  directory.write("tokenizer_config.json", R"({"bos_token": "a", "add_bos_token": true})");
  const std::string own = jinja_template(find_chat_format("llama3"), "");
  directory.write("chat_template.jinja", own);
  const auto tokenizer = load_tokenizer(directory.path().string());
  const auto files_for = [&](const char* format) {
    std::map<std::string, std::string> files;
    for (const Tokenizer::File& file :
         tokenizer_files(*tokenizer, model_of(Family::Llama), &find_chat_format(format)))
      files[file.name] = file.content;
    return files;
  };
  const auto same = files_for("llama3"), other = files_for("chatml");
  EXPECT_EQ(same.at("chat_template.jinja"), own);
  EXPECT_FALSE(Json::parse(same.at("tokenizer_config.json")).contains("chat_template"));
  EXPECT_FALSE(other.contains("chat_template.jinja"));
  EXPECT_EQ(Json::parse(other.at("tokenizer_config.json")).at("chat_template"),
            jinja_template(find_chat_format("chatml"), "a"));
}

}  // namespace
}  // namespace kintsugi
