// config.json of sequence classifiers, as transformers writes and reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/families/family.h"
#include "model/model_fields.h"
#include "model/model_test_util.h"
#include "model/parameter_set.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const json kClassifier = json::parse(R"({
  "architectures": ["LlamaForSequenceClassification"], "hidden_size": 32, "hidden_act": "silu",
  "id2label": {"0": "negative", "1": "neutral", "2": "positive"},
  "label2id": {"negative": 0, "neutral": 1, "positive": 2}, "intermediate_size": 56,
  "max_position_embeddings": 256, "model_type": "llama", "num_attention_heads": 4,
  "num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": 5, "eos_token_id": 2,
  "problem_type": "single_label_classification", "rms_norm_eps": 1e-05,
  "tie_word_embeddings": true, "vocab_size": 67})");

ModelConfig parse_classifier(const json& document) {
  return parse_hf_config(document.dump(), "dir/config.json");
}

std::string complaint_about(const char* key, const json& value) {
  json document = kClassifier;
  document[key] = value;
  return user_error_of([&] { parse_classifier(document); });
}

TEST(ClassifierConfig, HasLabelsAndItsOwnHead) {
  const ModelConfig config = parse_classifier(kClassifier);
  EXPECT_EQ(config.labels, (std::vector<std::string>{"negative", "neutral", "positive"}));
  EXPECT_EQ(config.pad_token, 5);
  const ParameterSet set(config);
  const Parameter& head = set[set.index("score.weight")];
  EXPECT_EQ(head.global, (Shape{3, 32}));
  for (const Parameter& parameter : set.parameters()) EXPECT_NE(parameter.name, "lm_head.weight");
}

TEST(ClassifierConfig, IsWrittenAsTransformersReadsIt) {
  const std::map<std::string, std::string> classes = {
      {"gpt2-tiny", "GPT2ForSequenceClassification"},
      {"llama-tiny", "LlamaForSequenceClassification"},
      {"qwen2-tiny", "Qwen2ForSequenceClassification"},
      {"qwen3-tiny", "Qwen3ForSequenceClassification"},
      {"bloom-tiny", "BloomForSequenceClassification"},
      {"olmo2-tiny", "Olmo2ForSequenceClassification"},
      {"olmo3-tiny", "Olmo3ForSequenceClassification"}};
  for (const auto& [preset, architecture] : classes) {
    SCOPED_TRACE(preset);
    ModelConfig config = load_preset(preset);
    config.eos_token = 7;
    config.labels = {"a \"b\"", "c: d", "é, f"};
    config.complete_and_check();
    const std::string text = write_hf_config(config, DType::F32);
    const json written = json::parse(text);
    EXPECT_EQ(written.at("architectures"), json::array({architecture}));
    EXPECT_EQ(written.at("problem_type"), "single_label_classification");
    EXPECT_EQ(written.at("id2label").at("1"), "c: d");
    EXPECT_EQ(written.at("label2id").at("é, f"), 2);
    EXPECT_EQ(written.at("pad_token_id"), 7);
    EXPECT_EQ(parse_hf_config(text, "config.json"), config);
    EXPECT_EQ(parse_model_yaml(model_to_yaml(config), "model"), config);
  }
}

TEST(ClassifierConfig, DefaultLabelsOfALanguageModelAreIgnored) {
  json document = kClassifier;
  document["architectures"] = {"LlamaForCausalLM"};
  EXPECT_FALSE(parse_classifier(document).is_classifier());
  EXPECT_EQ(parse_classifier(document).pad_token, -1);
}

TEST(ClassifierConfig, WithoutNamesHasTheDefaultOnes) {
  json document = kClassifier;
  document.erase("id2label");
  document.erase("problem_type");
  EXPECT_EQ(parse_classifier(document).labels, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
}

TEST(ClassifierConfig, RefusesWhatItIsNot) {
  EXPECT_THAT(complaint_about("problem_type", "regression"), HasSubstr("regression"));
  EXPECT_THAT(complaint_about("problem_type", "multi_label_classification"),
              HasSubstr("only single_label_classification"));
  EXPECT_THAT(complaint_about("id2label", {{"0", "score"}}), HasSubstr("one label"));
  EXPECT_THAT(complaint_about("id2label", {{"0", "a"}, {"2", "b"}}), HasSubstr("none for 1"));
  EXPECT_THAT(complaint_about("id2label", {{"0", "a"}, {"1", "a"}}),
              HasSubstr("label 'a' is listed twice"));
  EXPECT_THAT(complaint_about("id2label", {{"0", "a"}, {"1", 3}}), HasSubstr("not a string"));
  EXPECT_THAT(complaint_about("id2label", "a"), HasSubstr("must be an object"));
  EXPECT_THAT(complaint_about("architectures", {"Qwen2ForSequenceClassification"}),
              HasSubstr("does not belong to model_type llama"));
}

TEST(ClassifierConfig, RetnetHasNone) {
  ModelConfig config = load_preset("retnet-tiny");
  config.labels = {"a", "b"};
  EXPECT_THAT(user_error_of([&] { config.complete_and_check(); }),
              HasSubstr("family retnet has no sequence classifier"));
}

TEST(ClassifierConfig, SurvivesDamage) {
  expect_robust(kClassifier.dump(1),
                [](const std::string& text) { parse_hf_config(text, "config.json"); });
}

}  // namespace
}  // namespace kintsugi
