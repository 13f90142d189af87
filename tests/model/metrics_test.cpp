#include "model/metrics.h"

#include <gtest/gtest.h>

namespace kintsugi {
namespace {

std::int64_t group(const ModelSize& size, ParameterGroup group) {
  return size.by_group[static_cast<std::size_t>(group)];
}

// Published counts (model cards and papers).
TEST(MetricsTest, CountsTheParametersOfReleasedModels) {
  const std::pair<const char*, std::int64_t> published[] = {
      {"gpt2-124m", 124'439'808},      {"gpt2-355m", 354'823'168},
      {"gpt2-774m", 774'030'080},      {"gpt2-1.5b", 1'557'611'200},
      {"llama-1b", 1'235'814'400},     {"llama-3b", 3'212'749'824},
      {"llama-8b", 8'030'261'248},     {"llama-70b", 70'553'706'496},
      {"llama-405b", 405'853'388'800}, {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304}, {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},   {"qwen3-0.6b", 596'049'920},
      {"qwen3-8b", 8'190'735'360},     {"bloom-560m", 559'214'592},
  };
  for (const auto& [name, count] : published) {
    const ParameterSet set(load_preset(name));
    EXPECT_EQ(count_parameters(set).total, count) << name;
    EXPECT_EQ(set.elements(), count) << name;
  }
  // Models with only a rounded public figure.
  const std::pair<const char*, double> rounded[] = {
      {"gpt-1.4b", 1.4e9}, {"gpt-22b", 22e9},    {"gpt-175b", 175e9},  {"gpt-1t", 1e12},
      {"gpt-nl-8b", 8e9},  {"gpt-nl-30b", 30e9}, {"poro-34b", 34.2e9}, {"olmo-7b-like", 6.9e9}};
  for (const auto& [name, count] : rounded)
    EXPECT_NEAR(static_cast<double>(ParameterSet(load_preset(name)).elements()) / count, 1.0, 0.01)
        << name;
}

TEST(MetricsTest, GroupsParameters) {
  // GPT-2 124M by hand: h = 768, 12 blocks, biases with their matrices.
  const std::int64_t h = 768;
  const ModelSize gpt2 = count_parameters(ParameterSet(load_preset("gpt2-124m")));
  EXPECT_EQ(group(gpt2, ParameterGroup::Embedding), (50257 + 1024) * h);
  EXPECT_EQ(group(gpt2, ParameterGroup::Attention), 12 * (4 * h * h + 4 * h));
  EXPECT_EQ(group(gpt2, ParameterGroup::Mlp), 12 * (8 * h * h + 5 * h));
  EXPECT_EQ(group(gpt2, ParameterGroup::Norm), 12 * 4 * h + 2 * h);
  EXPECT_EQ(group(gpt2, ParameterGroup::Head), 0);

  const ModelSize llama = count_parameters(ParameterSet(load_preset("llama-8b")));
  EXPECT_EQ(group(llama, ParameterGroup::Embedding), 128256 * 4096);
  EXPECT_EQ(group(llama, ParameterGroup::Head), 128256 * 4096);
  EXPECT_EQ(group(llama, ParameterGroup::Norm), 65 * 4096);
  std::int64_t sum = 0;
  for (const std::int64_t count : llama.by_group) sum += count;
  EXPECT_EQ(sum, llama.total);
}

TEST(MetricsTest, FlopsOfLlama8b) {
  const TrainingFlops flops = training_flops_per_token(load_preset("llama-8b"), 8192);
  EXPECT_NEAR(flops.linear / 1e9, 45.03, 0.005);
  EXPECT_NEAR(flops.causal() / 1e9, 51.47, 0.005);
  EXPECT_NEAR(flops.full() / 1e9, 57.91, 0.005);
}

// Megatron's closed form for GPT: 72 L h^2 (1 + s / (6h) + V / (12 L h)) per token, full attention.
TEST(MetricsTest, FlopsAgreeWithMegatronsClosedForm) {
  for (const char* name : {"gpt2-124m", "gpt-175b", "gpt-1t", "poro-34b"}) {
    const ModelConfig config = load_preset(name);
    const auto L = static_cast<double>(config.layers), h = static_cast<double>(config.hidden_size);
    const auto V = static_cast<double>(config.vocab_size);
    const double s = 1024;
    const double expected = 72 * L * h * h * (1 + s / (6 * h) + V / (12 * L * h));
    EXPECT_NEAR(training_flops_per_token(config, 1024).full() / expected, 1.0, 1e-12) << name;
  }
}

// Six FLOPs per weight of every matmul: all matrices but the embedding look-ups; a tied head counts
// once, and of experts those that a token uses.
TEST(MetricsTest, LinearFlopsFollowTheParameters) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = load_preset(name);
    const ParameterSet set(config);
    double weights = config.tied ? static_cast<double>(config.vocab_size * config.hidden_size) : 0;
    for (const Parameter& p : set.parameters())
      if (p.decay && p.group != ParameterGroup::Embedding)
        weights +=
            static_cast<double>(p.shape.elements()) *
            (p.group != ParameterGroup::Experts ? 1.0
                                                : static_cast<double>(config.experts->chosen) /
                                                      static_cast<double>(config.experts->count));
    EXPECT_NEAR(training_flops_per_token(config, 1).linear / (6 * weights), 1.0, 1e-12) << name;
  }
}

}  // namespace
}  // namespace kintsugi
