#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "model/model_fields.h"
#include "model/model_test_util.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

ModelConfig small_llama() {
  ModelConfig config;
  config.vocab_size = 100;
  config.hidden_size = 64;
  config.layers = 2;
  config.heads = 8;
  config.max_positions = 128;
  return config;
}

std::string complaint_about(const ModelConfig& config) {
  return user_error_of([copy = config]() mutable { copy.complete_and_check(); });
}

TEST(ModelConfigTest, DerivesWhatIsNotGiven) {
  ModelConfig config = small_llama();
  config.complete_and_check();
  EXPECT_EQ(config.kv_heads, 8);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.ffn_size, 256);
  EXPECT_EQ(config.qkv_rows(), 192);

  config = small_llama();
  config.kv_heads = 2;
  config.head_dim = 10;
  config.ffn_size = 96;
  config.complete_and_check();
  EXPECT_EQ(config.qkv_rows(), 120);
  EXPECT_EQ(config.ffn_size, 96);
}

TEST(ModelConfigTest, RefusesSizesThatMakeNoModel) {
  const auto with = [](auto change) {
    ModelConfig config = small_llama();
    change(config);
    return complaint_about(config);
  };
  EXPECT_THAT(with([](auto& c) { c.vocab_size = 0; }), HasSubstr("vocab_size is missing"));
  EXPECT_THAT(with([](auto& c) { c.hidden_size = -64; }), HasSubstr("hidden_size is -64"));
  EXPECT_THAT(with([](auto& c) { c.layers = 0; }), HasSubstr("layers is missing"));
  EXPECT_THAT(with([](auto& c) { c.layers = 1'000'000; }), HasSubstr("layers is 1000000: at most"));
  EXPECT_THAT(with([](auto& c) { c.max_positions = 0; }), HasSubstr("max_positions is missing"));
  EXPECT_THAT(with([](auto& c) { c.heads = 7; }),
              HasSubstr("heads 7 does not divide hidden_size 64"));
  EXPECT_THAT(with([](auto& c) { c.kv_heads = 3; }),
              HasSubstr("kv_heads 3 does not divide heads 8"));
  EXPECT_THAT(with([](auto& c) { c.kv_heads = 16; }),
              HasSubstr("kv_heads 16 does not divide heads 8"));
  EXPECT_THAT(with([](auto& c) { c.kv_heads = -1; }), HasSubstr("kv_heads is -1"));
  EXPECT_THAT(with([](auto& c) { c.head_dim = 9; }),
              HasSubstr("head_dim is 9: rotary positions need an even"));
  EXPECT_THAT(with([](auto& c) { c.head_dim = -2; }), HasSubstr("head_dim is -2"));
  EXPECT_THAT(with([](auto& c) { c.ffn_size = -1; }), HasSubstr("ffn_size is -1"));
  EXPECT_THAT(with([](auto& c) { c.norm_eps = 0; }), HasSubstr("norm_eps is 0"));
  EXPECT_THAT(with([](auto& c) { c.rope_theta = std::numeric_limits<double>::infinity(); }),
              HasSubstr("rope_theta is inf"));
  EXPECT_THAT(with([](auto& c) { c.init_std = -0.1; }), HasSubstr("init_std is -0.1"));
  EXPECT_THAT(with([](auto& c) { c.eos_token = 100; }),
              HasSubstr("eos_token is 100, outside the vocabulary of 100"));
  EXPECT_THAT(with([](auto& c) { c.bos_token = -2; }), HasSubstr("bos_token is -2"));
  EXPECT_THAT(with([](auto& c) { c.hidden_size = c.ffn_size = 2'000'000'000; }),
              HasSubstr("mistyped"));
  EXPECT_THAT(with([](auto& c) { c.rope_scaling = RopeScaling{.factor = -1}; }),
              HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(with([](auto& c) { c.rope_scaling = RopeScaling{.low_freq_factor = 4}; }),
              HasSubstr("low_freq_factor 4 must be below high_freq_factor 4"));
}

TEST(ModelConfigTest, FamiliesWithOnePackedProjectionRefuseOtherHeads) {
  for (const Family family : {Family::Gpt2, Family::Bloom}) {
    ModelConfig config = small_llama();
    config.family = family;
    config.kv_heads = 2;
    EXPECT_THAT(complaint_about(config), HasSubstr("kv_heads is 2"));
    config.kv_heads = 0;
    config.head_dim = 16;
    EXPECT_THAT(complaint_about(config), HasSubstr("head_dim 16 x heads 8 is not hidden_size 64"));
    config.head_dim = 0;
    config.rope_scaling = RopeScaling{};
    EXPECT_THAT(complaint_about(config), HasSubstr("no rotary positions"));
    config.rope_scaling.reset();
    config.ffn_size = 100;
    if (family == Family::Bloom)
      EXPECT_THAT(complaint_about(config),
                  HasSubstr("ffn_size is 100 but family bloom always has 4"));
    else
      EXPECT_NO_THROW(config.complete_and_check());
  }
  ModelConfig odd = small_llama();  // an odd head size is fine without RoPE
  odd.family = Family::Gpt2;
  odd.hidden_size = 72;
  EXPECT_NO_THROW(odd.complete_and_check());
  EXPECT_EQ(odd.head_dim, 9);
}

TEST(ModelConfigTest, FamiliesHaveNames) {
  for (const Family family :
       {Family::Gpt2, Family::Llama, Family::Qwen2, Family::Qwen3, Family::Bloom})
    EXPECT_EQ(parse_family(to_string(family)), family);
  EXPECT_THAT(user_error_of([] { parse_family("lama"); }),
              AllOf(HasSubstr("'lama'"), HasSubstr("did you mean 'llama'"),
                    HasSubstr("gpt2, llama, qwen2, qwen3, bloom")));
  EXPECT_THAT(user_error_of([] { parse_family("transformer-xl"); }),
              Not(HasSubstr("did you mean")));
}

constexpr const char* kYaml =
    "family: qwen3\n"
    "vocab_size: 151_936\n"
    "hidden_size: 1k\n"
    "layers: 4\n"
    "heads: 10\n"
    "kv_heads: 2\n"
    "max_positions: 32768\n"
    "norm_eps: 1e-6\n"
    "rope_scaling: {factor: 32, original_max_positions: 8k}\n"
    "tied: no\n";

TEST(ModelYamlTest, ReadsEveryKindOfValue) {
  const ModelConfig config = parse_model_yaml(kYaml, "m.yaml");
  EXPECT_EQ(config.family, Family::Qwen3);
  EXPECT_EQ(config.vocab_size, 151936);
  EXPECT_EQ(config.hidden_size, 1000);
  EXPECT_EQ(config.head_dim, 100);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_FALSE(config.tied);
  ASSERT_TRUE(config.rope_scaling.has_value());
  EXPECT_EQ(*config.rope_scaling, (RopeScaling{.factor = 32, .original_max_positions = 8000}));
  // With a base, only the named fields change; null removes the scaling.
  const ModelConfig changed = parse_model_yaml("{layers: 7, rope_scaling: null}", "m.yaml", config);
  ModelConfig expected = config;
  expected.layers = 7;
  expected.rope_scaling.reset();
  EXPECT_EQ(changed, expected);
}

TEST(ModelYamlTest, NamesTheKeyTheFileAndTheLine) {
  const auto complaint = [](const std::string& line) {
    return user_error_of([&] { parse_model_yaml(kYaml + line, "dir/m.yaml"); });
  };
  EXPECT_THAT(complaint("hiden_size: 4\n"),
              AllOf(HasSubstr("dir/m.yaml line 11"), HasSubstr("'hiden_size'"),
                    HasSubstr("did you mean 'hidden_size'")));
  EXPECT_THAT(complaint("temperature_of_the_room: 4\n"),
              HasSubstr("the keys are family, vocab_size"));
  EXPECT_THAT(complaint("layers: 4\n"),
              AllOf(HasSubstr("line 11: layers"), HasSubstr("given twice")));
  EXPECT_THAT(complaint("head_dim: many\n"),
              AllOf(HasSubstr("line 11: head_dim: 'many' is not a whole number")));
  EXPECT_THAT(complaint("head_dim: 1.5\n"),
              HasSubstr("line 11: head_dim: '1.5' is not a whole number"));
  EXPECT_THAT(complaint("head_dim: [1]\n"),
              HasSubstr("head_dim: must be a whole number, not a list"));
  EXPECT_THAT(complaint("head_dim:\n"), HasSubstr("head_dim: must be a whole number, not nothing"));
  EXPECT_THAT(complaint("init_std: {a: b}\n"), HasSubstr("init_std: must be a number, not a map"));
  EXPECT_THAT(complaint("init_std: small\n"), HasSubstr("init_std: 'small' is not a number"));
  EXPECT_THAT(complaint("[a, b]: 1\n"), HasSubstr("a key must be a word, not a list"));
  EXPECT_THAT(complaint("eos_token: 1M\n"), HasSubstr("dir/m.yaml: eos_token is 1000000"));
  EXPECT_THAT(complaint("---\nlayers: 3\n"), HasSubstr("dir/m.yaml line"));
  EXPECT_THAT(complaint("x: [1, 2\n"),
              AllOf(HasSubstr("dir/m.yaml line"), HasSubstr("not valid YAML")));

  const auto whole = [](const std::string& text) {
    return user_error_of([&] { parse_model_yaml(text, "m.yaml"); });
  };
  EXPECT_THAT(whole("tied: maybe"), HasSubstr("line 1: tied: 'maybe' is neither true nor false"));
  EXPECT_THAT(whole("family: lama"), HasSubstr("line 1: family: there is no model family 'lama'"));
  EXPECT_THAT(whole("rope_scaling: 8"),
              HasSubstr("rope_scaling: must be a map like {factor: 8} or null, not '8'"));
  EXPECT_THAT(
      whole("layers: 1\nrope_scaling:\n  faktor: 8"),
      AllOf(HasSubstr("m.yaml line 3: unknown key 'rope_scaling.faktor'"), HasSubstr("'factor'")));
  EXPECT_THAT(whole("rope_scaling: {factor: x}"),
              HasSubstr("line 1: rope_scaling.factor: 'x' is not a number"));
  EXPECT_THAT(whole(""), HasSubstr("m.yaml"));
  EXPECT_THAT(whole("[1, 2]"), HasSubstr("not a list"));
  EXPECT_THAT(whole(", layers: 2"), HasSubstr("m.yaml"));
  EXPECT_THAT(whole("layers: 2"), HasSubstr("m.yaml: vocab_size is missing"));
}

TEST(ModelYamlTest, WritesWhatItReads) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = load_preset(name);
    EXPECT_EQ(parse_model_yaml(model_to_yaml(config), name), config) << model_to_yaml(config);
  }
  ModelConfig config = parse_model_yaml(kYaml, "m.yaml");
  config.norm_eps = 0.1 + 0.2;  // seventeen digits
  config.rope_theta = 1e22;
  config.init_std = 5e-324;
  config.rope_scaling->factor = 1.0 / 3;
  EXPECT_EQ(parse_model_yaml(model_to_yaml(config), "m"), config) << model_to_yaml(config);
  // Every key that can be read is written.
  const YAML::Node written = YAML::Load(model_to_yaml(config));
  for (const std::string& key : model_section_keys())
    EXPECT_EQ(written[key].IsDefined(), key != "preset" && key != "config" && key != "init" &&
                                            key != "new_tokens" && key != "allow_unused_weights")
        << key;
}

TEST(ModelYamlTest, DamagedTextIsRefusedAndNothingWorse) {
  const std::string full = model_to_yaml(parse_model_yaml(kYaml, "m"));
  expect_robust(kYaml, [](const std::string& text) { parse_model_yaml(text, "m"); });
  expect_robust(full, [](const std::string& text) { parse_model_yaml(text, "m"); });
  for (const char* opening : {"[", "{", "- ", "? ", "&a [*a, ", "!!"}) {
    std::string deep;
    for (int i = 0; i < 20'000; ++i) deep += opening;
    EXPECT_THROW(parse_model_yaml(deep, "deep"), UserError) << opening;
  }
}

TEST(ModelSectionTest, OverridesAPreset) {
  const auto read = [](const char* text) {
    return read_model_section(YAML::Load(text), "run.yaml");
  };
  ModelConfig expected = load_preset("llama-tiny");
  EXPECT_EQ(read("{preset: llama-tiny}"), expected);
  expected.layers = 9;
  EXPECT_EQ(read("{layers: 9, preset: llama-tiny}"), expected);
  // Derived sizes follow the override.
  const ModelConfig wide = read("{preset: llama-tiny, hidden_size: 256, heads: 2}");
  EXPECT_EQ(wide.kv_heads, 2);
  EXPECT_EQ(wide.head_dim, 128);
  EXPECT_EQ(wide.ffn_size, 384);
  EXPECT_EQ(read_model_section(YAML::Load(model_to_yaml(expected)), "run.yaml"), expected);

  EXPECT_THAT(
      user_error_of([&] { read("{preset: llama-tiny, layres: 9}"); }),
      AllOf(HasSubstr("run.yaml line 1"), HasSubstr("'model.layres'"), HasSubstr("'layers'")));
  EXPECT_THAT(user_error_of([&] { read("{preset: llama-tiny, heads: 3}"); }),
              HasSubstr("run.yaml: model: heads 3 does not divide hidden_size 128"));
  EXPECT_THAT(user_error_of([&] { read("{preset: lama-tiny}"); }),
              HasSubstr("did you mean 'llama-tiny'"));
  EXPECT_THAT(user_error_of([&] { read("{preset: a, config: b}"); }),
              HasSubstr("exclude each other"));
  EXPECT_THAT(user_error_of([&] { read("{preset: [a]}"); }),
              HasSubstr("model.preset is a name, not a list"));
  EXPECT_THAT(user_error_of([&] { read("{config: {}}"); }),
              HasSubstr("model.config is a name, not a map"));
  EXPECT_THAT(user_error_of([&] { read("llama-tiny"); }), HasSubstr("not 'llama-tiny'"));
  EXPECT_THAT(user_error_of([&] { read("{config: no/such/config.json}"); }),
              HasSubstr("no/such/config.json"));
  EXPECT_THAT(user_error_of([&] { read("{prest: llama-tiny}"); }),
              HasSubstr("did you mean 'preset'"));

  YAML::Node edited = YAML::Load("{preset: llama-tiny}");  // as --set does: nodes without a line
  edited["layers"] = "x";
  EXPECT_THAT(user_error_of([&] { read_model_section(edited, "run.yaml"); }),
              HasSubstr("run.yaml: model.layers: 'x' is not a whole number"));
}

TEST(PresetTest, EveryFileIsAPreset) {
  std::size_t files = 0;
  const auto names = preset_names();
  for (const auto& entry : std::filesystem::directory_iterator(source_directory() + "/models")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    EXPECT_THAT(names, Contains(entry.path().stem().string()));
    std::ifstream stream(entry.path());
    std::string first, rest;
    std::getline(stream, first);
    std::getline(stream, rest, '\0');
    EXPECT_TRUE(first.starts_with("# "))
        << entry.path() << " does not say where its numbers come from";
    EXPECT_EQ(rest.find(';'), std::string::npos)
        << entry.path() << ": CMake would eat the semicolon";
  }
  EXPECT_EQ(files, names.size());
  for (const std::string& name : names) EXPECT_NO_THROW(load_preset(name)) << name;
  EXPECT_THAT(user_error_of([] { load_preset("qwen3-9b"); }),
              AllOf(HasSubstr("'qwen3-9b'"), HasSubstr("did you mean 'qwen3-8b'"),
                    HasSubstr("kintsugi model --list")));
}

TEST(PresetTest, HasThePublishedDimensions) {
  const ModelConfig frontier = load_preset("gpt-1t");
  EXPECT_EQ(frontier.layers, 128);
  EXPECT_EQ(frontier.hidden_size, 25600);
  EXPECT_EQ(frontier.heads, 128);
  EXPECT_EQ(load_preset("gpt-1.4b").hidden_size, 2112);
  const ModelConfig dutch = load_preset("gpt-nl-30b");
  EXPECT_EQ(dutch.layers, 60);
  EXPECT_EQ(dutch.hidden_size, 6656);
  EXPECT_EQ(dutch.ffn_size, 17920);
  EXPECT_EQ(dutch.heads, 52);
  EXPECT_EQ(dutch.kv_heads, 13);
  EXPECT_EQ(dutch.head_dim, 128);
  EXPECT_EQ(dutch.rope_theta, 500000);
  EXPECT_EQ(load_preset("llama-1b").head_dim, 64);
  EXPECT_EQ(load_preset("llama-1b").rope_scaling->factor, 32);
  EXPECT_EQ(load_preset("llama-405b").rope_scaling->factor, 8);
  EXPECT_EQ(load_preset("qwen3-0.6b").head_dim, 128);
}

class ResolveModelTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("resolve_model_" + std::to_string(std::random_device{}()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::filesystem::path folder_;
};

TEST_F(ResolveModelTest, TakesNamesFilesAndDirectories) {
  const ModelConfig config = load_preset("qwen3-tiny");
  EXPECT_EQ(resolve_model("qwen3-tiny"), config);
  EXPECT_EQ(resolve_model(write("m.yaml", model_to_yaml(config))), config);
  EXPECT_EQ(resolve_model(write("config.json", write_hf_config(config, DType::BF16))), config);
  EXPECT_EQ(resolve_model(folder_.string()), config);
}

TEST_F(ResolveModelTest, SaysWhatIsMissing) {
  const auto complaint = [](const std::string& name) {
    return user_error_of([&] { resolve_model(name); });
  };
  EXPECT_THAT(complaint("llama-8"), HasSubstr("did you mean 'llama-8b'"));
  EXPECT_THAT(complaint(""), HasSubstr("no preset ''"));
  EXPECT_THAT(complaint("no/such/path"), HasSubstr("no file or directory no/such/path"));
  EXPECT_THAT(complaint("missing.yaml"), HasSubstr("missing.yaml"));
  EXPECT_THAT(complaint("missing.json"), HasSubstr("missing.json"));
  EXPECT_THAT(complaint(folder_.string()), HasSubstr("holds no config.json"));
  EXPECT_THAT(complaint(write("m.txt", "x")), HasSubstr("neither a .yaml"));
  EXPECT_THAT(complaint(std::string(5000, 'x')), HasSubstr("no preset"));
  // By size, not by spelling: llama-1b, -3b and -8b differ from llama-6b by one letter.
  EXPECT_THAT(complaint("llama-6b"), HasSubstr("did you mean 'llama-8b'"));
  EXPECT_THAT(complaint("llama-100b"), HasSubstr("did you mean 'llama-70b'"));
  EXPECT_THAT(complaint("qwen2.5-600m"), HasSubstr("did you mean 'qwen2.5-0.5b'"));
  EXPECT_THAT(complaint("lama-9b"), HasSubstr("did you mean 'llama-8b'"));
}

}  // namespace
}  // namespace kintsugi
