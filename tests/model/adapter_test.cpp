// PEFT directories: what is read, written and refused, and merged weights against plain arithmetic
// on the bytes of files that PEFT has written (tests/data/make_finetune_fixtures.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/adapter/merge_adapter.h"
#include "model/adapter/peft_config.h"
#include "model/adapter/stored_adapter.h"
#include "support/directory_contents.h"
#include "support/errors.h"
#include "support/raw_model.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const fs::path kFixtures = test_data_directory();
fs::path fixture_adapter(const std::string& name) {
  return kFixtures / "finetune" / ("lora-" + name);
}

json stored_config(const std::string& name) {
  return json::parse(raw_file(fixture_adapter(name) / "adapter_config.json"));
}

// The message that names the file and a key.
std::string refused_key(const std::string& key, const json& value) {
  json config = stored_config("llama");
  config[key] = value;
  const std::string message = user_error_of([&] { parse_peft_config(config.dump(), "FILE"); });
  EXPECT_THAT(message, testing::StartsWith("FILE: "));
  EXPECT_THAT(message, HasSubstr(key));
  return message;
}

// ---- adapter_config.json

TEST(PeftConfig, HasTheValuesOfPeft) {
  const PeftConfig llama = read_peft_config(fixture_adapter("llama"));
  EXPECT_EQ(llama.lora.r, 4);
  EXPECT_EQ(llama.lora.alpha, 8);
  EXPECT_EQ(llama.lora.scale(), 2);
  EXPECT_EQ(llama.base, "llama");
  EXPECT_THAT(llama.lora.targets, ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj",
                                              "q_proj", "up_proj", "v_proj"));
  EXPECT_EQ(read_peft_config(fixture_adapter("rs")).lora.scale(), 4);  // 8 / sqrt(4)
  EXPECT_TRUE(read_peft_config(fixture_adapter("gpt2")).fan_in_fan_out);
  EXPECT_THAT(read_peft_config(fixture_adapter("classifier")).lora.train,
              ElementsAre("classifier", "score"));
}

// Every key that PEFT 0.21 needs has its value; keys of features that are off may be missing.
TEST(PeftConfig, IsWrittenAsPeftWritesIt) {
  for (const char* name : {"llama", "rs", "gpt2", "bloom", "classifier"}) {
    json expected = stored_config(name);
    std::sort(expected["target_modules"].begin(), expected["target_modules"].end());
    const std::string text = write_peft_config(read_peft_config(fixture_adapter(name)));
    const json written = json::parse(text);
    for (const auto& [key, value] : written.items()) EXPECT_EQ(value, expected.at(key)) << key;
    for (const auto& [key, value] : expected.items()) {
      if (written.contains(key)) continue;
      EXPECT_TRUE(value.is_null() || value == false || key == "peft_version") << key;
    }
    EXPECT_EQ(parse_peft_config(text, "again"), read_peft_config(fixture_adapter(name)));
  }
}

TEST(PeftConfig, RefusesOtherComputations) {
  refused_key("peft_type", "IA3");
  refused_key("bias", "all");
  refused_key("use_dora", true);
  refused_key("lora_bias", true);
  refused_key("layer_replication", json::array({{0, 4}}));
  refused_key("trainable_token_indices", {1, 2});
  refused_key("target_parameters", {"mlp.experts.gate_up_proj"});
  EXPECT_THAT(refused_key("init_lora_weights", "pissa_niter_4"), HasSubstr("plain LoRA"));
  refused_key("a_later_invention", 3);
  refused_key("r", 0);
  refused_key("r", "four");
  refused_key("lora_alpha", json::array());
  refused_key("lora_dropout", 1.5);
  refused_key("target_modules", {1});
  refused_key("rank_pattern", {{"layers.[0-3].q_proj", 2}});
  EXPECT_THAT(user_error_of([] { parse_peft_config("[]", "FILE"); }), HasSubstr("FILE"));
  EXPECT_THAT(user_error_of([] { parse_peft_config("{\"r\": 4}", "FILE"); }),
              HasSubstr("peft_type"));
}

// Keys that only say how the adapter was made change nothing.
TEST(PeftConfig, AcceptsHowItWasMade) {
  json config = stored_config("llama");
  config["target_modules"] = "all-linear";
  config["layers_to_transform"] = {0};
  config["init_lora_weights"] = "gaussian";
  config["revision"] = "main";
  EXPECT_THAT(parse_peft_config(config.dump(), "FILE").lora.targets, ElementsAre("all-linear"));
  config["target_modules"] = ".*\\.(q|v)_proj";
  EXPECT_TRUE(parse_peft_config(config.dump(), "FILE").lora.targets.empty());
}

TEST(PeftConfig, PatternsOfRanksAndAlphas) {
  json config = stored_config("rs");
  config["rank_pattern"] = {{"layers\\.0\\.self_attn.q_proj", 9}, {"v_proj", 16}};
  config["alpha_pattern"] = {{"^model.layers.1.self_attn.q_proj", 12}};
  const PeftConfig read = parse_peft_config(config.dump(), "FILE");
  EXPECT_EQ(read.rank_of("model.layers.0.self_attn.q_proj"), 9);
  EXPECT_EQ(read.rank_of("model.layers.10.self_attn.q_proj"), 4);
  EXPECT_EQ(read.rank_of("model.layers.1.self_attn.v_proj"), 16);
  EXPECT_EQ(read.rank_of("model.layers.1.self_attn.qv_proj"), 4);
  EXPECT_DOUBLE_EQ(read.scale_of("model.layers.0.self_attn.q_proj"), 8.0 / 3);  // alpha / sqrt(r)
  EXPECT_DOUBLE_EQ(read.scale_of("model.layers.1.self_attn.q_proj"), 6);
}

// ---- directories

// A copy of an adapter of PEFT whose files can be changed.
class AdapterDirectory : public testing::Test {
 protected:
  void copy(const std::string& name, const std::string& base) {
    adapter_ = directory_ / "adapter";
    fs::create_directories(adapter_);
    tensors_ = read_raw_model(fixture_adapter(name));
    config_ = stored_config(name);
    base_ = kFixtures / base;
    save();
  }
  void save() {
    write_raw_file(adapter_ / "adapter_model.safetensors", tensors_);
    std::ofstream(adapter_ / "adapter_config.json") << config_.dump();
  }
  std::string refusal() {
    save();
    const std::string message = user_error_of(
        [&] { StoredAdapter(adapter_, read_hf_config(base_ / "config.json"), base_); });
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }
  // Compares a merged model with W + scale · B A, computed here.
  void expect_merged(const RawModel& merged, double scale, bool in_out, int bits = 24) {
    const RawModel base = read_raw_model(base_);
    std::size_t changed = 0;
    ASSERT_EQ(merged.size(), base.size());
    for (const auto& [name, tensor] : merged) {
      const std::string module =
          "base_model.model." + name.substr(0, name.size() - std::string(".weight").size());
      const auto found_a = tensors_.find(module + ".lora_A.weight");
      if (found_a != tensors_.end()) ++changed;
      for (std::size_t e = 0; e < tensor.values.size(); ++e) {
        double value = base.at(name).values[e];
        if (found_a != tensors_.end()) {
          const RawTensor &a = found_a->second, &b = tensors_.at(module + ".lora_B.weight");
          const auto r = static_cast<std::size_t>(a.shape[0]),
                     inputs = static_cast<std::size_t>(a.shape[1]),
                     outputs = static_cast<std::size_t>(b.shape[0]);
          const std::size_t out = in_out ? e % outputs : e / inputs,
                            in = in_out ? e / outputs : e % inputs;
          for (std::size_t k = 0; k < r; ++k)
            value += scale * b.values[out * r + k] * a.values[k * inputs + in];
        }
        ASSERT_NEAR(tensor.values[e], nearest_with_bits(value, bits),
                    std::ldexp(std::fabs(value), -bits + 1))
            << name << " " << e;
      }
    }
    EXPECT_EQ(changed, tensors_.size() / 2);
  }

  TemporaryDirectory directory_;
  fs::path adapter_, base_;
  RawModel tensors_;
  json config_;
};

TEST_F(AdapterDirectory, MergedWeightsAreTheFormula) {
  const struct {
    const char *adapter, *base;
    double scale;
    bool in_out;
  } cases[] = {{"llama", "llama", 2, false},
               {"rs", "llama", 4, false},
               {"gpt2", "gpt2", 2, true},
               {"bloom", "bloom", 2, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.adapter);
    copy(c.adapter, c.base);
    const auto result = merge_adapter(adapter_, base_, directory_ / c.adapter, {.block = 777});
    EXPECT_EQ(result.non_finite, 0u);
    expect_merged(read_raw_model(directory_ / c.adapter), c.scale, c.in_out);
    EXPECT_EQ(raw_file(directory_ / c.adapter / "config.json"), raw_file(base_ / "config.json"));
  }
}

TEST_F(AdapterDirectory, MergedWeightsAreRoundedOnce) {
  copy("llama", "llama");
  merge_adapter(adapter_, base_, directory_ / "merged", {.dtype = DType::BF16});
  expect_merged(read_raw_model(directory_ / "merged"), 2, false, 8);
}

TEST_F(AdapterDirectory, OtherSpellingsOfNames) {
  copy("rs", "llama");
  RawModel renamed;
  for (const auto& [name, tensor] : tensors_) {
    std::string other = name.substr(std::string("base_model.model.").size());
    other.insert(other.rfind(".weight"), ".default");
    renamed[other] = tensor;
  }
  const RawModel original = std::exchange(tensors_, renamed);
  save();
  merge_adapter(adapter_, base_, directory_ / "merged");
  tensors_ = original;
  expect_merged(read_raw_model(directory_ / "merged"), 4, false);
}

// Modules that were trained whole replace those of the base.
TEST_F(AdapterDirectory, WholeModulesReplaceTheBase) {
  copy("rs", "llama");
  RawTensor norm{"F32", {32}, std::vector<double>(32, 0.25)};
  tensors_["base_model.model.model.norm.modules_to_save.default.weight"] = norm;
  config_["modules_to_save"] = {"norm"};
  save();
  merge_adapter(adapter_, base_, directory_ / "merged");
  EXPECT_EQ(read_raw_model(directory_ / "merged").at("model.norm.weight").values, norm.values);
}

TEST_F(AdapterDirectory, BringsItsTokenizer) {
  copy("llama", "llama");
  EXPECT_EQ((ModelFiles{base_, adapter_}.tokenizer()), base_);
  std::ofstream(adapter_ / "tokenizer.json") << "{}";
  std::ofstream(adapter_ / "tokenizer_config.json") << "{\"added\": 1}";
  EXPECT_EQ((ModelFiles{base_, adapter_}.tokenizer()), adapter_);
  merge_adapter(adapter_, base_, directory_ / "merged");
  EXPECT_EQ(raw_file(directory_ / "merged/tokenizer_config.json"), "{\"added\": 1}");
  EXPECT_FALSE(fs::exists(directory_ / "merged/adapter_config.json"));
}

TEST_F(AdapterDirectory, AnAdapterOfAnotherModelIsRefused) {
  copy("llama", "gpt2");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("another model"), HasSubstr(adapter_.string()),
                               HasSubstr(base_.string()), HasSubstr("down_proj")));
  copy("llama", "llama");
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
  tensors_[q] = {"F32", {40, 4}, std::vector<double>(160, 0.5)};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("[40, 4]"), HasSubstr("[32, 4]"), HasSubstr(q)));
  copy("llama", "llama-tied");
  tensors_["base_model.model.lm_head.weight"] = {"F32", {67, 32}, std::vector<double>(67 * 32)};
  EXPECT_THAT(refusal(), HasSubstr("tied"));
}

TEST_F(AdapterDirectory, DamagedAdaptersAreRefused) {
  copy("llama", "llama");
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj.";
  tensors_.erase(q + "lora_B.weight");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("q_proj"),
                               HasSubstr("no lora_B")));
  copy("llama", "llama");
  config_["r"] = 8;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("rank 4"), HasSubstr("says 8")));
  copy("llama", "llama");
  tensors_[q + "lora_magnitude_vector"] = {"F32", {32}, std::vector<double>(32)};
  EXPECT_THAT(refusal(), HasSubstr("lora_magnitude_vector"));
  copy("llama", "llama");
  tensors_["model.layers.1.self_attn.q_proj.lora_A.default.weight"] = tensors_[q + "lora_A.weight"];
  EXPECT_THAT(refusal(), HasSubstr("twice"));
  fs::remove(adapter_ / "adapter_model.safetensors");
  EXPECT_THAT(user_error_of([&] { StoredAdapter{adapter_}; }), HasSubstr("adapter_model"));
}

// ---- the base model

TEST_F(AdapterDirectory, FindsItsBase) {
  copy("llama", "llama");
  const auto found = [&](const std::string& base) {
    config_["base_model_name_or_path"] = base;
    save();
    return find_model(adapter_);
  };
  EXPECT_EQ(found(base_.string()).model, base_);
  EXPECT_EQ(found(base_.string()).adapter, adapter_);
  fs::copy(base_, directory_ / "base");
  EXPECT_EQ(fs::canonical(found("../base").model), fs::canonical(directory_ / "base"));
  EXPECT_THAT(user_error_of([&] { found("meta-llama/Llama-3.1-8B"); }),
              AllOf(HasSubstr("meta-llama/Llama-3.1-8B"), HasSubstr("--adapter")));
  EXPECT_THAT(user_error_of([&] { merge_adapter(adapter_, "", directory_ / "x"); }),
              HasSubstr("--base"));
  EXPECT_THAT(user_error_of([&] { found(adapter_.string()); }), HasSubstr("adapter itself"));
  EXPECT_THAT(user_error_of([&] { find_model(adapter_, adapter_); }), HasSubstr("adapter itself"));
  EXPECT_THAT(user_error_of([&] { find_model(base_, base_); }), HasSubstr("adapter_config.json"));
  EXPECT_EQ(find_model(base_, adapter_).model, base_);
}

TEST_F(AdapterDirectory, ARefusedMergeLeavesNothing) {
  copy("llama", "gpt2");
  const auto before = directory_contents(directory_.path());
  EXPECT_THAT(user_error_of([&] { merge_adapter(adapter_, base_, directory_ / "x"); }),
              HasSubstr("another model"));
  base_ = kFixtures / "llama";
  EXPECT_THAT(user_error_of([&] { merge_adapter(adapter_, base_, adapter_, {.overwrite = true}); }),
              HasSubstr("would replace the input"));
  EXPECT_THAT(user_error_of([&] { merge_adapter(base_, base_, directory_ / "x"); }),
              HasSubstr("adapter_config.json"));
  EXPECT_EQ(directory_contents(directory_.path()), before);
  EXPECT_THAT(user_error_of([&] { StoredModel{adapter_}; }), HasSubstr("merge-adapter"));
}

}  // namespace
}  // namespace kintsugi
