#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/model_test_util.h"
#include "model/parameter_set.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// The released files, without keys that do not describe the architecture.
const json kLlama31 = json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 128256})");

const json kGpt2 = json::parse(R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
  "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
  "resid_pdrop": 0.1, "vocab_size": 50257})");

const json kBloom = json::parse(R"({
  "apply_residual_connection_post_layernorm": false, "attention_dropout": 0.0, "attention_softmax_in_fp32": true,
  "architectures": ["BloomForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3,
  "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "bloom",
  "n_embed": 1024, "n_inner": null, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100,
  "pretraining_tp": 1, "seq_length": 2048, "vocab_size": 250880})");

const json kQwen25 = json::parse(R"({
  "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu",
  "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
  "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_mrope": false, "use_sliding_window": false,
  "vocab_size": 151936})");

const json kQwen3 = json::parse(R"({
  "attention_bias": false, "bos_token_id": 151643, "eos_token_id": 151643, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 32768, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 151936})");

ModelConfig parse(const json& document) {
  return parse_hf_config(document.dump(), "dir/config.json");
}

std::string complaint(json document, const char* key, const json& value) {
  document[key] = value;
  return user_error_of([&] { parse(document); });
}

TEST(HfConfigTest, ReleasedFilesAreThePresets) {
  EXPECT_EQ(parse(kLlama31), load_preset("llama-8b"));
  EXPECT_EQ(parse(kGpt2), load_preset("gpt2-124m"));
  EXPECT_EQ(parse(kBloom), load_preset("bloom-560m"));
  EXPECT_EQ(parse(kQwen25), load_preset("qwen2.5-0.5b"));
  EXPECT_EQ(parse(kQwen3), load_preset("qwen3-0.6b"));
}

TEST(HfConfigTest, ReadsTheKeysOfVersion5) {
  json modern = kLlama31;
  modern["rope_parameters"] = modern["rope_scaling"];
  modern["rope_parameters"]["rope_theta"] = 500000.0;
  modern.erase("rope_scaling");
  modern.erase("rope_theta");
  modern["dtype"] = modern["torch_dtype"];
  modern.erase("torch_dtype");
  EXPECT_EQ(parse(modern), load_preset("llama-8b"));

  json plain = kQwen3;
  plain.erase("rope_theta");
  plain.erase("rope_scaling");
  plain["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1000000.0}};
  plain["layer_types"] = std::vector<std::string>(28, "full_attention");
  EXPECT_EQ(parse(plain), load_preset("qwen3-0.6b"));
}

TEST(HfConfigTest, AcceptsOlderSpellingsAndAbsentKeys) {
  json old = kLlama31;
  old["rope_scaling"]["type"] = "llama3";
  old["rope_scaling"].erase("rope_type");
  old["head_dim"] = nullptr;
  EXPECT_EQ(parse(old), load_preset("llama-8b"));

  const json least = {{"model_type", "llama"},    {"vocab_size", 100},
                      {"hidden_size", 64},        {"num_hidden_layers", 2},
                      {"num_attention_heads", 4}, {"intermediate_size", 128}};
  ModelConfig config = parse(least);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_FALSE(config.tied);
  EXPECT_EQ(config.eos_token, -1);

  json other_words = {
      {"model_type", "gpt2"},   {"vocab_size", 100},        {"hidden_size", 64},
      {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"max_position_embeddings", 77},
      {"n_inner", 100}};
  config = parse(other_words);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.max_positions, 77);
  EXPECT_EQ(config.ffn_size, 100);
  EXPECT_TRUE(config.tied);
}

TEST(HfConfigTest, EndTokensComeInManyForms) {
  const auto eos = [](const json& value) {
    json document = kLlama31;
    document["eos_token_id"] = value;
    return parse(document).eos_token;
  };
  EXPECT_EQ(eos(7), 7);
  EXPECT_EQ(eos({128001, 128008, 128009}), 128001);
  EXPECT_EQ(eos(nullptr), -1);
  EXPECT_EQ(eos(json::array()), -1);
  EXPECT_EQ(eos(-1), -1);
  EXPECT_EQ(eos(999999), -1);  // a family's default id outside a smaller vocabulary
  EXPECT_THAT(complaint(kLlama31, "eos_token_id", "</s>"),
              HasSubstr("eos_token_id must be a whole number, not \"</s>\""));
  EXPECT_THAT(complaint(kLlama31, "eos_token_id", json::array({true})), HasSubstr("eos_token_id"));
}

TEST(HfConfigTest, RefusesWhatItCannotCompute) {
  EXPECT_THAT(complaint(kLlama31, "model_type", "mistral"),
              AllOf(HasSubstr("dir/config.json"), HasSubstr("'mistral'"),
                    HasSubstr("gpt2, llama, qwen2, qwen3, bloom")));
  EXPECT_THAT(complaint(kLlama31, "attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(complaint(kQwen3, "attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(complaint(kLlama31, "mlp_bias", true), HasSubstr("mlp_bias is true"));
  EXPECT_THAT(complaint(kLlama31, "hidden_act", "gelu"), HasSubstr("hidden_act is 'gelu'"));
  EXPECT_THAT(complaint(kLlama31, "partial_rotary_factor", 0.5),
              HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(complaint(kLlama31, "quantization_config", {{"bits", 4}}),
              HasSubstr("quantization_config"));
  EXPECT_THAT(complaint(kQwen25, "use_sliding_window", true),
              HasSubstr("use_sliding_window is true"));
  EXPECT_THAT(complaint(kQwen25, "layer_types", {"full_attention", "sliding_attention"}),
              HasSubstr("layer_types holds \"sliding_attention\""));
  EXPECT_THAT(complaint(kQwen25, "rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}),
              HasSubstr("rope_scaling.rope_type is 'dynamic'"));
  EXPECT_THAT(complaint(kQwen3, "rope_parameters", {{"rope_type", "linear"}}),
              HasSubstr("rope_parameters.rope_type is 'linear'"));
  EXPECT_THAT(complaint(kGpt2, "activation_function", "gelu"),
              HasSubstr("activation_function is 'gelu'"));
  EXPECT_THAT(complaint(kGpt2, "scale_attn_by_inverse_layer_idx", true),
              HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_THAT(complaint(kGpt2, "scale_attn_weights", false),
              HasSubstr("scale_attn_weights is false"));
  EXPECT_THAT(complaint(kGpt2, "add_cross_attention", true), HasSubstr("add_cross_attention"));
  EXPECT_THAT(complaint(kBloom, "apply_residual_connection_post_layernorm", true),
              HasSubstr("apply_residual_connection_post_layernorm is true"));
  EXPECT_THAT(complaint(kBloom, "n_inner", 1000), HasSubstr("ffn_size is 1000"));
  EXPECT_THAT(complaint(kLlama31, "num_key_value_heads", 5),
              HasSubstr("dir/config.json: kv_heads 5 does not divide heads 32"));
}

TEST(HfConfigTest, NamesMissingAndWrongKeys) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "model_type"}) {
    json document = kLlama31;
    document.erase(key);
    EXPECT_THAT(user_error_of([&] { parse(document); }),
                AllOf(HasSubstr("dir/config.json"), HasSubstr(std::string("'") + key + "'"),
                      HasSubstr("missing")));
    EXPECT_THAT(complaint(kLlama31, key, json::array({1})),
                AllOf(HasSubstr(key), HasSubstr("must be"), HasSubstr("not [1]")));
  }
  json no_size = kBloom;
  no_size.erase("n_embed");
  EXPECT_THAT(user_error_of([&] { parse(no_size); }),
              HasSubstr("'hidden_size' or 'n_embed' is missing"));
  json no_factor = kLlama31;
  no_factor["rope_scaling"].erase("factor");
  EXPECT_THAT(user_error_of([&] { parse(no_factor); }),
              HasSubstr("'rope_scaling.factor' is missing"));

  EXPECT_THAT(complaint(kLlama31, "vocab_size", 12.5),
              HasSubstr("vocab_size must be a whole number, not 12.5"));
  EXPECT_THAT(complaint(kLlama31, "vocab_size", 18446744073709551615ULL),
              HasSubstr("vocab_size must be a whole number"));
  EXPECT_THAT(complaint(kLlama31, "vocab_size", -3), HasSubstr("vocab_size is -3"));
  EXPECT_THAT(complaint(kLlama31, "rms_norm_eps", "1e-5"),
              HasSubstr("rms_norm_eps must be a number, not \"1e-5\""));
  EXPECT_THAT(complaint(kLlama31, "tie_word_embeddings", 1),
              HasSubstr("tie_word_embeddings must be true or false, not 1"));
  EXPECT_THAT(complaint(kLlama31, "rope_scaling", "llama3"),
              HasSubstr("rope_scaling must be an object"));
  EXPECT_THAT(complaint(kQwen3, "layer_types", "full_attention"),
              HasSubstr("layer_types must be a list"));

  const auto raw = [](const std::string& text) {
    return user_error_of([&] { parse_hf_config(text, "c.json"); });
  };
  EXPECT_THAT(raw("{\"model_type\": "),
              AllOf(HasSubstr("c.json is not valid JSON"), HasSubstr("line 1")));
  EXPECT_THAT(raw(""), HasSubstr("c.json is not valid JSON"));
  EXPECT_THAT(raw("[1]"), HasSubstr("c.json is not a model's config.json"));
  EXPECT_THAT(raw("{\"model_type\":\"llama\",\"vocab_size\":1e999}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(user_error_of([] { read_hf_config("no/such/config.json"); }),
              HasSubstr("no/such/config.json"));
}

TEST(HfConfigTest, WritesWhatItReads) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = load_preset(name);
    EXPECT_EQ(parse_hf_config(write_hf_config(config, DType::BF16), name), config) << name;
  }
  ModelConfig odd = load_preset("gpt2-tiny");
  odd.tied = false;
  odd.ffn_size = 100;
  odd.init_std = 0.1 + 0.2;
  EXPECT_EQ(parse_hf_config(write_hf_config(odd, DType::F32), "odd"), odd);
}

// Every value that transformers would read, written out by hand.
TEST(HfConfigTest, WritesTheKeysOfVersion4) {
  json expected = kLlama31;
  expected["head_dim"] = 128;
  expected["pad_token_id"] = nullptr;
  expected["torch_dtype"] = "float32";
  expected["transformers_version"] = "4.51.0";
  EXPECT_EQ(json::parse(write_hf_config(load_preset("llama-8b"), DType::F32)), expected);

  EXPECT_EQ(json::parse(write_hf_config(load_preset("gpt2-tiny"), DType::F16)), json::parse(R"({
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_embd": 128, "n_head": 4,
    "n_layer": 4, "n_positions": 512, "n_inner": null, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "scale_attn_weights": true,
    "scale_attn_by_inverse_layer_idx": false, "reorder_and_upcast_attn": false, "initializer_range": 0.02,
    "use_cache": true, "bos_token_id": null, "eos_token_id": null, "tie_word_embeddings": true,
    "torch_dtype": "float16", "transformers_version": "4.51.0"})"));

  EXPECT_EQ(json::parse(write_hf_config(load_preset("bloom-560m"), DType::F64)), json::parse(R"({
    "architectures": ["BloomForCausalLM"], "model_type": "bloom", "vocab_size": 250880, "hidden_size": 1024,
    "n_layer": 24, "n_head": 16, "seq_length": 2048, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
    "apply_residual_connection_post_layernorm": false, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "pretraining_tp": 1, "slow_but_exact": false, "use_cache": true, "pad_token_id": null, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": true, "torch_dtype": "float64", "transformers_version": "4.51.0"})"));

  const json qwen3 = json::parse(write_hf_config(load_preset("qwen3-8b"), DType::BF16));
  EXPECT_EQ(qwen3["architectures"], json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(qwen3["head_dim"], 128);
  EXPECT_EQ(qwen3["use_sliding_window"], false);
  EXPECT_EQ(qwen3["rope_scaling"], nullptr);
  EXPECT_EQ(qwen3["torch_dtype"], "bfloat16");
  EXPECT_THROW(write_hf_config(load_preset("qwen3-8b"), DType::I32), Failure);
}

TEST(HfConfigTest, WritesGenerationTokensThatExist) {
  EXPECT_EQ(json::parse(write_hf_generation_config(load_preset("llama-8b"))),
            json::parse(
                R"({"_from_model_config": true, "bos_token_id": 128000, "eos_token_id": 128001})"));
  EXPECT_EQ(json::parse(write_hf_generation_config(load_preset("llama-tiny"))),
            json::parse(R"({"_from_model_config": true})"));
}

TEST(HfConfigTest, DamagedTextIsRefusedAndNothingWorse) {
  for (const json& document : {kLlama31, kGpt2, kBloom, kQwen3})
    expect_robust(document.dump(1),
                  [](const std::string& text) { parse_hf_config(text, "c.json"); });
  EXPECT_THROW(parse_hf_config(std::string(200'000, '['), "deep"), UserError);
}

std::string olmo3_with(const std::string& changes) {
  auto json = nlohmann::json::parse(R"({"model_type": "olmo3", "vocab_size": 64, "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
      "max_position_embeddings": 256, "sliding_window": 8,
      "layer_types": ["sliding_attention", "full_attention"]})");
  json.update(nlohmann::json::parse(changes));
  return json.dump();
}

TEST(HfConfigTest, WindowsAndScalingsThatAreWrongAreReportedInOneLine) {
  const auto complaint = [](const std::string& changes) {
    return user_error_of([&] { parse_hf_config(olmo3_with(changes), "config.json"); });
  };
  EXPECT_NO_THROW(parse_hf_config(olmo3_with("{}"), "config.json"));
  EXPECT_THAT(complaint(R"({"sliding_window": 0})"), HasSubstr("sliding_window is missing"));
  EXPECT_THAT(complaint(R"({"sliding_window": -3})"), HasSubstr("sliding_window is -3"));
  EXPECT_THAT(complaint(R"({"layer_types": ["full_attention"]})"),
              HasSubstr("layer_types has 1 entries, but the model has 2 layers"));
  EXPECT_THAT(complaint(R"({"layer_types": ["full_attention", "odd"]})"), HasSubstr("'odd'"));
  EXPECT_THAT(complaint(R"({"layer_types": [1, 2]})"), HasSubstr("layer_types"));
  EXPECT_THAT(complaint(R"({"rope_scaling": {"rope_type": "longrope", "factor": 2}})"),
              HasSubstr("'longrope', which is not supported (only default, llama3, yarn)"));
  EXPECT_THAT(complaint(R"({"rope_scaling": {"rope_type": "yarn"}})"), HasSubstr("factor"));
  EXPECT_THAT(complaint(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 1,
                            "beta_slow": 4}})"),
              HasSubstr("beta_slow 4 must be below beta_fast 1"));
  EXPECT_THAT(complaint(R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": -1}})"),
              HasSubstr("rope_scaling.mscale is -1: it must be positive, or 0 for the default"));
}

TEST(HfConfigTest, NewFamiliesAreWrittenAndReadBack) {
  for (const char* name : {"olmo2-1b", "olmo2-7b", "olmo3-7b", "olmo3-32b", "olmo3-tiny",
                           "retnet-tiny", "retnet-medium"}) {
    const ModelConfig config = load_preset(name),
                      read = parse_hf_config(write_hf_config(config, DType::F32), "config.json");
    EXPECT_EQ(read, config) << name;
  }
}

// Published sizes: allenai's model cards and torchscale's paper.
TEST(HfConfigTest, NewPresetsHaveThePublishedSizes) {
  const auto billions = [](const char* name) {
    return static_cast<double>(ParameterSet(load_preset(name)).elements()) * 1e-9;
  };
  EXPECT_NEAR(billions("olmo2-1b"), 1.48, 0.01);
  EXPECT_NEAR(billions("olmo2-7b"), 7.30, 0.01);
  EXPECT_NEAR(billions("olmo3-7b"), 7.30, 0.01);
  EXPECT_NEAR(billions("olmo3-32b"), 32.2, 0.1);
  EXPECT_NEAR(billions("retnet-medium"), 0.306, 0.001);
}

}  // namespace
}  // namespace kintsugi
