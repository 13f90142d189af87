// Mixtures of experts against models without them.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "backend/cpu/cpu_backend.h"
#include "core/file.h"
#include "model/files/merge.h"
#include "model/files/stored_model.h"
#include "model/initialize.h"
#include "model/metrics.h"
#include "model/whole_model.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kSequences = 2, kLength = 16, kTokens = kSequences * kLength;

// A model in fp64 with one micro-batch.
struct MixtureRun {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Arena arena{*backend};
  ModelConfig config;
  ParameterSet set;
  ParameterStore store;
  WholeModel model;
  Tensor loss;

  explicit MixtureRun(const ModelConfig& of)
      : config(of),
        set(config),
        store(set, arena, DType::F64, true),
        model(*backend, arena, store, config, {.sequences = kSequences, .length = kLength}),
        loss(arena.allocate(Region::Workspace, "loss", DType::F64, {1})) {
    if (config.fp8.on()) store.allocate_quantized(arena, false);
    model.prepare();
    initialize_parameters(*backend, store, 7);
  }
  double* weight(const std::string& name) { return store.weight(set.index(name)).as<double>(); }
  double* gradient(const std::string& name) { return store.gradient(set.index(name)).as<double>(); }
  std::int64_t size(const std::string& name) const { return set[set.index(name)].shape.elements(); }
  double run() {
    std::vector<std::int32_t> ids(kTokens), positions(kTokens);
    for (std::int32_t i = 0; i < kTokens; ++i) {
      ids[static_cast<std::size_t>(i)] = i * 7 % 19;
      positions[static_cast<std::size_t>(i)] = i % static_cast<std::int32_t>(kLength);
    }
    const auto put = [&](std::vector<std::int32_t>& x) {
      return Tensor(x.data(), DType::I32, {kTokens});
    };
    backend->fill(loss, 0.0);
    backend->fill(store.gradients(), 0.0);
    model.forward_backward({.sequences = kSequences,
                            .length = kLength,
                            .ids = put(ids),
                            .targets = put(ids),
                            .positions = put(positions)},
                           1.0, loss);
    return *loss.as<double>();
  }
};

ModelConfig config_without_experts(Family family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 19;
  config.hidden_size = 12;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.ffn_size = 20;
  config.max_positions = 16;
  config.tied = false;
  config.init_std = 0.3;
  return config;
}

ModelConfig config_with_experts(std::int64_t count, std::int64_t chosen) {
  ModelConfig config = config_without_experts(Family::Mixtral);
  config.experts = ExpertsConfig{.count = count, .chosen = chosen};
  config.complete_and_check();
  return config;
}

const LoraConfig kAdapters{.r = 3, .alpha = 5, .targets = {"all-linear"}};

void set_random(MixtureRun& run, const std::string& name, std::mt19937& random) {
  std::normal_distribution<double> normal(0, 0.3);
  for (std::int64_t i = 0; i < run.size(name); ++i) run.weight(name)[i] = normal(random);
}

// Calls f(name of a dense MLP's parameter, names of those of the experts), for their weights, or
// their adapters.
void for_each_copied(const LoraConfig& lora, int experts, const auto& f) {
  const std::vector<std::string> kinds =
      lora.on() ? std::vector<std::string>{"lora_A.weight", "lora_B.weight"}
                : std::vector<std::string>{"weight"};
  const std::string before = lora.on() ? "base_model.model." : "";
  for (int layer = 0; layer < 2; ++layer)
    for (const auto& [of_expert, of_mlp] :
         {std::pair("w1", "gate_proj"), {"w3", "up_proj"}, {"w2", "down_proj"}})
      for (const std::string& kind : kinds) {
        const std::string prefix = fmt::format("{}model.layers.{}.", before, layer);
        std::vector<std::string> copies;
        for (int e = 0; e < experts; ++e)
          copies.push_back(
              fmt::format("{}block_sparse_moe.experts.{}.{}.{}", prefix, e, of_expert, kind));
        f(fmt::format("{}mlp.{}.{}", prefix, of_mlp, kind), copies);
      }
}

// If all experts are chosen and have the weights of one MLP, so has the mixture, whatever the
// router says; and the same for their adapters.
// In fp8, the router's weights are 0, so that the weights of all experts are the same power of two:
// it changes no rounding.
void expect_one_mlp(const LoraConfig& lora, bool fp8 = false) {
  const int count = fp8 ? 2 : 3;
  ModelConfig config = config_without_experts(Family::Llama),
              mixture = config_without_experts(Family::Mixtral);
  mixture.experts = ExpertsConfig{.count = count, .chosen = count};
  for (ModelConfig* const one : {&config, &mixture}) {
    one->lora = lora;
    if (fp8) {
      one->hidden_size = 32;
      one->ffn_size = 48;
      one->fp8 = {.recipe = Fp8Recipe::Rowwise, .wgrad = false};
    }
    one->complete_and_check();
  }
  MixtureRun dense(config), experts(mixture);
  if (fp8)
    for (const Parameter& parameter : experts.set.parameters())
      if (parameter.group == ParameterGroup::Router)
        std::fill_n(experts.weight(parameter.name), parameter.shape.elements(), 0.0);
  std::mt19937 random(5);
  for (const Parameter& parameter : dense.set.parameters())
    if (parameter.name.ends_with("lora_B.weight")) set_random(dense, parameter.name, random);
  std::set<std::string> own;  // of the MLP
  for (const LoraConfig& each : {LoraConfig(), lora})
    for_each_copied(each, count,
                    [&](const std::string& mlp, const std::vector<std::string>& copies) {
                      own.insert(mlp);
                      for (const std::string& copy : copies)
                        std::copy_n(dense.weight(mlp), dense.size(mlp), experts.weight(copy));
                    });
  for (const Parameter& parameter : dense.set.parameters())
    if (!own.contains(parameter.name))
      std::copy_n(dense.weight(parameter.name), parameter.shape.elements(),
                  experts.weight(parameter.name));
  const double loss = dense.run();
  EXPECT_NEAR(experts.run(), loss, 1e-12 * loss);
  for (const Parameter& parameter : dense.set.parameters())
    if (!own.contains(parameter.name) && parameter.trained) {
      for (std::int64_t i = 0; i < parameter.shape.elements(); ++i)
        ASSERT_NEAR(experts.gradient(parameter.name)[i], dense.gradient(parameter.name)[i], 1e-11)
            << parameter.name;
    }
  for_each_copied(lora, count, [&](const std::string& mlp, const std::vector<std::string>& copies) {
    double largest = 0;
    for (std::int64_t i = 0; i < dense.size(mlp); ++i) {
      double sum = 0;
      for (const std::string& copy : copies) sum += experts.gradient(copy)[i];
      ASSERT_NEAR(sum, dense.gradient(mlp)[i], 1e-11) << mlp;
      largest = std::max(largest, std::abs(sum));
    }
    EXPECT_GT(largest, 1e-6) << mlp;
  });
}

TEST(Experts, OfEqualWeightsAreOneMlp) { expect_one_mlp({}); }
TEST(Experts, OfEqualAdaptersAreOneMlpWithAdapters) { expect_one_mlp(kAdapters); }
TEST(Experts, OfEqualWeightsAreOneMlpInFp8) { expect_one_mlp({}, true); }

// How far the gradients of a model in fp8 are from those without it: of a parameter, the norm of
// the difference relative to that of the gradient. All experts are chosen, so that no choice
// changes.
double error_of_fp8(Family family) {
  ModelConfig config = config_without_experts(family);
  config.hidden_size = 64;
  config.ffn_size = 96;
  config.init_std = 0.02;
  if (family == Family::Mixtral) config.experts = ExpertsConfig{.count = 4, .chosen = 4};
  config.complete_and_check();
  MixtureRun without(config);
  config.fp8.recipe = Fp8Recipe::Rowwise;
  MixtureRun in_8(config);
  without.run();
  in_8.run();
  double worst = 0;
  for (const Parameter& parameter : without.set.parameters()) {
    const double *expected = without.gradient(parameter.name),
                 *actual = in_8.gradient(parameter.name);
    double error = 0, size = 0;
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
      error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    EXPECT_GT(size, 0) << parameter.name;
    worst = std::max(worst, std::sqrt(error / size));
  }
  return worst;
}

TEST(Experts, InFp8HaveGradientsAsNearAsThoseOfAnMlp) {
  const double dense = error_of_fp8(Family::Llama), experts = error_of_fp8(Family::Mixtral);
  EXPECT_GT(experts, 0.01);
  EXPECT_LT(dense, 0.1);
  EXPECT_LT(experts, 1.5 * dense);
}

// The loss along a random direction of each trained parameter: adapters of experts, the router, and
// the embedding, whose gradient goes through the inputs of the experts. All experts are chosen, so
// that no choice changes.
TEST(Experts, HaveAdaptersWithTheGradientsOfDifferences) {
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"w1", "w2", "w3"}, {"w3"}, {"w2"}}) {
    ModelConfig config = config_with_experts(3, 3);
    config.lora = kAdapters;
    config.lora.targets = targets;
    config.lora.train = {"gate", "embed_tokens"};
    MixtureRun experts(config);
    std::mt19937 random(6);
    for (const Parameter& parameter : experts.set.parameters())
      if (parameter.name.ends_with("lora_B.weight")) set_random(experts, parameter.name, random);
    int checked = 0;
    for (const Parameter& parameter : experts.set.parameters()) {
      if (!parameter.trained) continue;
      const std::string& name = parameter.name;
      const auto n = static_cast<std::size_t>(experts.size(name));
      experts.run();
      const std::vector<double> before(experts.weight(name), experts.weight(name) + n),
          gradient(experts.gradient(name), experts.gradient(name) + n);
      set_random(experts, name, random);
      const std::vector<double> along(experts.weight(name), experts.weight(name) + n);
      const auto loss_at = [&](double distance) {
        for (std::size_t i = 0; i < n; ++i)
          experts.weight(name)[i] = before[i] + distance * along[i];
        return experts.run();
      };
      const double step = 1e-5, slope = (loss_at(step) - loss_at(-step)) / (2 * step);
      std::copy(before.begin(), before.end(), experts.weight(name));
      EXPECT_NEAR(std::inner_product(gradient.begin(), gradient.end(), along.begin(), 0.0), slope,
                  1e-6 * std::max(1.0, std::abs(slope)))
          << name;
      EXPECT_GT(std::abs(slope), 1e-6) << name;
      ++checked;
    }
    EXPECT_EQ(checked, 2 * 3 * 2 * static_cast<int>(targets.size()) + 3);
  }
}

// A router that prefers nothing sends all tokens to the first experts; the others have gradients of
// 0, also where an earlier run had left some.
TEST(Experts, WithoutTokensHaveNoGradients) {
  MixtureRun experts(config_with_experts(4, 2));
  experts.run();
  for (const Parameter& parameter : experts.set.parameters())
    if (parameter.group == ParameterGroup::Router)
      std::fill_n(experts.weight(parameter.name), parameter.shape.elements(), 0.0);
  EXPECT_TRUE(std::isfinite(experts.run()));
  for (int e = 0; e < 4; ++e) {
    const std::string name = fmt::format("model.layers.0.block_sparse_moe.experts.{}.w2.weight", e);
    double sum = 0;
    for (std::int64_t i = 0; i < experts.size(name); ++i)
      sum += std::abs(experts.gradient(name)[i]);
    EXPECT_EQ(sum > 0, e < 2) << name;
  }
}

TEST(Experts, OfPublishedModelsAreCountedAsPublished) {
  struct Published {
    const char* preset;
    std::int64_t total, active;
    double gigaflops;  // three times forward, sequences of 4096 tokens, causal
  };
  for (const auto& [preset, total, active, gigaflops] :
       {Published{"mixtral-8x7b", 46'702'792'704, 12'879'925'248, 79.7},
        Published{"olmoe-1b-7b", 6'919'161'856, 1'282'017'280, 7.88},
        Published{"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704, 23.1},
        Published{"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520, 148},
        Published{"dots1", 142'774'373'888, 14'016'581'120, 86.6},
        Published{"glm-4.5-air", 106'852'245'504, 13'424'123'904, 90.7},
        Published{"deepseek-v3", 671'026'404'352, 37'552'282'624, 250}}) {
    const ModelConfig config = load_preset(preset);
    const ModelSize size = count_parameters(ParameterSet(config));
    EXPECT_EQ(size.total, total) << preset;
    EXPECT_EQ(size.active, active) << preset;
    EXPECT_NEAR(training_flops_per_token(config, 4096).causal() / 1e9, gigaflops, 0.005 * gigaflops)
        << preset;
  }
}

// The bias of a router decides which experts are chosen, but not their weights: if all of them are
// chosen, it changes only the order in which their outputs are added.
TEST(Experts, ChosenWithABiasHaveTheWeightsOfTheirScores) {
  ModelConfig config = config_without_experts(Family::Dots1);
  config.experts = ExpertsConfig{.count = 3, .chosen = 3, .size = 8, .scale = 2.5};
  config.complete_and_check();
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  MixtureRun all(config);
  const double loss = all.run();
  all.weight(bias)[0] = -0.5;
  EXPECT_NEAR(all.run(), loss, 1e-14 * loss);
  // One that is far behind is no longer chosen, and the others have all tokens.
  config.experts->chosen = 2;
  MixtureRun some(config);
  some.run();
  some.weight(bias)[1] = -3;
  some.run();
  for (int e = 0; e < 3; ++e) {
    const std::string name = fmt::format("model.layers.1.mlp.experts.{}.down_proj.weight", e);
    double sum = 0;
    for (std::int64_t i = 0; i < some.size(name); ++i) sum += std::abs(some.gradient(name)[i]);
    EXPECT_EQ(sum > 0, e != 1) << name;
  }
}

// It stays in fp32 while the model is in 16 bits, and no gradient trains it.
TEST(Experts, HaveBiasesInAccumulatorPrecision) {
  ModelConfig config = config_without_experts(Family::Glm4Moe);
  config.head_dim = 8;
  config.experts = ExpertsConfig{.count = 3, .chosen = 2, .size = 8};
  config.complete_and_check();
  const ParameterSet set(config);
  const auto backend = make_cpu_backend(1);
  Arena arena(*backend);
  const ParameterStore store(set, arena, DType::BF16, false);
  int biases = 0;
  for (int i = 0; i < static_cast<int>(set.parameters().size()); ++i) {
    const bool is_bias = set[i].name.ends_with(".e_score_correction_bias");
    biases += is_bias ? 1 : 0;
    EXPECT_EQ(store.weight(i).dtype(), is_bias ? DType::F32 : DType::BF16) << set[i].name;
    EXPECT_EQ(set[i].trained, !is_bias) << set[i].name;
  }
  EXPECT_EQ(biases, 2);
}

TEST(Experts, OfOtherTypesKeepTheirBiasesInFp32) {
  const TemporaryDirectory directory;
  merge_models({std::filesystem::path(test_data_directory()) / "dots1"}, directory / "merged",
               {.output = {.dtype = DType::BF16}});
  const SafetensorsModel files(directory / "merged");
  EXPECT_EQ(files.find("model.layers.1.mlp.gate.e_score_correction_bias").entry->dtype, DType::F32);
  EXPECT_EQ(files.find("model.layers.1.mlp.gate.weight").entry->dtype, DType::BF16);
}

// Layers that predict further tokens come after the last one and are not read; other layers there
// are refused.
TEST(Experts, OfLayersThatPredictFurtherTokensAreNotRead) {
  const std::filesystem::path fixture = std::filesystem::path(test_data_directory()) / "glm4-moe";
  const ModelConfig config = read_hf_config(fixture / "config.json");
  const ParameterSet set(config);
  const auto unused_with = [&](const std::vector<std::string>& names) {
    const TemporaryDirectory directory;
    std::vector<SafetensorsWriter::Announced> tensors;
    for (const Parameter& parameter : set.parameters())
      tensors.push_back({parameter.name, DType::F32, {1}});
    for (const std::string& name : names) tensors.push_back({name, DType::F32, {1}});
    SafetensorsWriter writer(directory / "model.safetensors", tensors);
    const float zero = 0;
    for (const auto& tensor : tensors) writer.append(tensor.name, &zero, sizeof(zero));
    writer.finish();
    return unused_weights(SafetensorsModel(directory.path()), config, config);
  };
  const std::string further = "model.layers.2.mlp.gate.weight";
  EXPECT_EQ(unused_with({further, "model.layers.2.eh_proj.weight"}), std::vector<std::string>());
  EXPECT_EQ(unused_with({further}), std::vector<std::string>{further});
}

TEST(Experts, ThatDoNotFitAreRefused) {
  const auto error_of = [](const auto& change) {
    return user_error_of([&] {
      ModelConfig config = config_without_experts(Family::Qwen3Moe);
      config.experts = ExpertsConfig{.count = 4, .chosen = 2};
      change(config);
      config.complete_and_check();
    });
  };
  EXPECT_EQ(error_of([](ModelConfig& c) { c.experts->chosen = 5; }),
            "experts.chosen is 5, but there are 4 experts");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.experts->dense_layers = {2}; }),
            "experts.dense_layers names layer 2, but the layers are 0 to 1");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.experts->count = 0; }),
            "experts.count is missing or 0: give a positive number");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.experts->groups = 2; }),
            "experts.groups is given, but family qwen3_moe has no such thing: remove it");
  EXPECT_EQ(
      error_of([](ModelConfig& c) { c.experts.reset(); }),
      "family qwen3_moe is a mixture of experts: give experts, such as {count: 8, chosen: 2}");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.family = Family::Llama; }),
            "experts are given, but family llama has none: remove them");
  EXPECT_EQ(error_of([](ModelConfig& c) {
              c.family = Family::Mixtral;
              c.experts->size = 8;
            }),
            "experts.size is 8, but the experts of family mixtral have the size ffn_size, 20: "
            "remove it");
  EXPECT_EQ(error_of([](ModelConfig& c) {
              c.family = Family::Dots1;
              c.experts->dense_layers = {1};
            }),
            "experts.dense_layers of family dots1 must be the first layers, but 0 is missing");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.qk_norm = true; }),
            "qk_norm is true, but family qwen3_moe has no such choice: remove it");
  EXPECT_EQ(error_of([](ModelConfig& c) { c.family = Family::Glm4Moe; }),
            "head_dim is 6: half of it is rotated in pairs, so 4 must divide it");
}

// The config.json of a fixture with a key changed; null: without it.
std::string changed_config(const char* fixture, const char* key, const nlohmann::json& value) {
  auto json = nlohmann::json::parse(
      read_text_file(std::filesystem::path(test_data_directory()) / fixture / "config.json"));
  json[key] = value;
  if (value.is_null()) json.erase(key);
  return json.dump();
}

TEST(Experts, OfConfigJsonAreReadAndWritten) {
  for (const char* const name :
       {"mixtral", "olmoe", "qwen3-moe", "dots1", "glm4-moe", "deepseek-v3"}) {
    const ModelConfig config =
        read_hf_config(std::filesystem::path(test_data_directory()) / name / "config.json");
    EXPECT_EQ(parse_hf_config(write_hf_config(config, DType::F32), name), config) << name;
  }
  const ModelConfig sparse =
      parse_hf_config(changed_config("qwen3-moe", "decoder_sparse_step", 2), "config.json");
  EXPECT_EQ(sparse.experts->dense_layers, (std::vector<std::int64_t>{0, 1, 2}))
      << "0 and 2 by the step, 1 by its name";
  const std::string written = write_hf_config(
      parse_hf_config(changed_config("glm4-moe", "use_qk_norm", true), "config.json"), DType::F32);
  EXPECT_EQ(nlohmann::json::parse(written)["num_nextn_predict_layers"], 0);
  EXPECT_TRUE(parse_hf_config(written, "config.json").qk_norm);
}

TEST(Experts, OfABadConfigJsonAreRefused) {
  const auto error_of = [](const char* fixture, const char* key, const nlohmann::json& value) {
    return user_error_of(
        [&] { parse_hf_config(changed_config(fixture, key, value), "config.json"); });
  };
  EXPECT_EQ(error_of("mixtral", "num_experts_per_tok", 5),
            "config.json: experts.chosen is 5, but there are 4 experts");
  EXPECT_EQ(error_of("mixtral", "num_local_experts", nullptr),
            "config.json: key 'num_local_experts' is missing");
  EXPECT_EQ(error_of("mixtral", "sliding_window", 4096),
            "config.json: sliding_window is not supported (only null)");
  EXPECT_EQ(error_of("olmoe", "clip_qkv", 8.0),
            "config.json: clip_qkv is not supported (only null)");
  EXPECT_EQ(error_of("qwen3-moe", "mlp_only_layers", "all"),
            "config.json: mlp_only_layers must be a list of whole numbers, not \"all\"");
  EXPECT_EQ(error_of("qwen3-moe", "decoder_sparse_step", 0),
            "config.json: decoder_sparse_step is 0: it must be 1 or more");
  EXPECT_EQ(error_of("qwen3-moe", "num_experts", -3),
            "config.json: experts.count is -3: it must be positive");
  EXPECT_EQ(error_of("dots1", "first_k_dense_replace", -1),
            "config.json: first_k_dense_replace is -1: it must be 0 or more");
  EXPECT_EQ(parse_hf_config(changed_config("dots1", "layer_types", nullptr), "config.json").layers,
            2)
      << "no layer has a window";
  EXPECT_EQ(
      user_error_of([] {
        auto json = nlohmann::json::parse(changed_config("dots1", "layer_types", nullptr));
        json["max_window_layers"] = 1;
        parse_hf_config(json.dump(), "config.json");
      }),
      "config.json: max_window_layers is below num_hidden_layers: sliding_window is not supported");
  EXPECT_EQ(error_of("dots1", "n_group", 4),
            "config.json: experts.groups 4 does not divide experts.count 6");
  EXPECT_EQ(error_of("dots1", "n_shared_experts", -2),
            "config.json: experts.shared is -2: it must be positive");
  EXPECT_EQ(error_of("glm4-moe", "attention_bias", false),
            "config.json: attention_bias is false, which is not supported (only true)");
  EXPECT_EQ(error_of("glm4-moe", "partial_rotary_factor", 0.25),
            "config.json: partial_rotary_factor is 0.25, which is not supported (only 0.5)");
}

}  // namespace
}  // namespace kintsugi
