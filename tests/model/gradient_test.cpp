// Compares the whole model's backward with central differences of its forward, in fp64, with the
// features that the fixtures leave out: dropout and document masks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "model/families/family.h"
#include "model/initialize.h"
#include "model/whole_model.h"

namespace kintsugi {
namespace {

ModelConfig small_model(Family family, int labels) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 19;
  config.hidden_size = 12;
  config.layers = 2;
  config.heads = 2;
  const bool packed = family == Family::Gpt2 || family == Family::Bloom;
  config.kv_heads = packed || family == Family::Retnet ? 2 : 1;
  if (family == Family::Retnet) config.value_size = 16;
  if (family == Family::Olmo3) {
    config.sliding_window = 3;
    config.layer_types = {LayerType::Sliding, LayerType::Full};
  }
  if (family == Family::Olmoe || family == Family::Qwen3Moe)
    config.experts = ExpertsConfig{.count = 3, .chosen = 2, .normalize = family == Family::Olmoe};
  if (family_info(family).bias)
    config.experts =
        ExpertsConfig{.count = 3, .chosen = 2, .shared = 1, .dense_layers = {0}, .scale = 1.5};
  config.qk_norm = family_info(family).qk_norm;
  config.head_dim = family == Family::Glm4Moe ? 8 : 6;
  if (family_info(family).latent) {
    config.kv_heads = config.head_dim = 0;
    config.latent = LatentConfig{.query_rank = labels > 0 ? 0 : 5,
                                 .rank = 7,
                                 .plain_dim = 3,
                                 .rotary_dim = 4,
                                 .value_dim = 5};
  }
  config.ffn_size = family == Family::Bloom ? 48 : 20;
  config.max_positions = 16;
  config.tied = family != Family::Llama;
  config.init_std = 0.3;
  for (int i = 0; i < labels; ++i) config.labels.push_back(fmt::format("label {}", i));
  config.complete_and_check();
  return config;
}

class GradientTest : public testing::TestWithParam<std::tuple<Family, bool, int>> {};

TEST_P(GradientTest, BackwardIsTheDerivativeOfForward) {
  const auto [family, documents, labels] = GetParam();
  if (documents && !family_info(family).document_masks)
    GTEST_SKIP() << to_string(family) << " reads over the ends of documents";
  const ModelConfig config = small_model(family, labels);
  const std::int64_t classes = labels > 0 ? labels : config.vocab_size;
  const auto backend = make_cpu_backend(1);
  Arena arena(*backend);
  const ParameterSet set(config);
  const ParameterStore store(set, arena, DType::F64, true);
  constexpr std::int64_t sequences = 2, length = 9, tokens = sequences * length;
  WholeModel model(*backend, arena, store, config, {.sequences = sequences, .length = length});
  model.prepare();
  initialize_parameters(*backend, store, 7);
  backend->fill(store.gradients(), 0.0);

  std::vector<std::int32_t> ids(tokens), targets(tokens), positions(tokens), starts(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ids[at] = static_cast<std::int32_t>(i * 7 % 19);
    targets[at] = i % 5 == 3 ? -1 : static_cast<std::int32_t>(i * 11 % classes);
    const std::int64_t in_sequence = i % length,
                       start = in_sequence >= 4 ? 4 : 0;  // two documents per sequence
    starts[at] = static_cast<std::int32_t>(start);
    positions[at] = static_cast<std::int32_t>(documents ? in_sequence - start : in_sequence);
  }
  const auto put = [&](const std::vector<std::int32_t>& values) {
    const Tensor x = arena.allocate(Region::Workspace, "batch", DType::I32, {tokens});
    backend->upload(x, values.data());
    return x;
  };
  MicroBatch batch{.sequences = sequences,
                   .length = length,
                   .ids = put(ids),
                   .targets = put(targets),
                   .positions = put(positions)};
  if (documents) batch.document_start = put(starts).view({sequences, length});
  batch.dropout = 0.2;
  batch.dropout_seed = 5;

  const Tensor loss = arena.allocate(Region::Workspace, "loss", DType::F64, {1});
  const auto forward = [&] {
    backend->fill(loss, 0.0);
    model.evaluate(batch, loss);
    double value = 0;
    backend->download(&value, loss);
    return value;
  };
  backend->fill(loss, 0.0);
  model.forward_backward(batch, 1.0, loss);
  const auto n = static_cast<std::size_t>(set.buffer_elements());
  std::vector<double> gradient(n), weights(n), moved(n);
  backend->download(gradient.data(), store.gradients());
  backend->download(weights.data(), store.weights());

  // Each parameter separately, along a random direction.
  for (const Parameter& parameter : set.parameters()) {
    constexpr double h = 1e-5;
    const auto begin = static_cast<std::size_t>(parameter.offset),
               count = static_cast<std::size_t>(parameter.shape.elements());
    std::vector<double> direction(count);
    double predicted = 0;
    for (std::size_t i = 0; i < count; ++i) {
      direction[i] = Philox::uniform(Philox::draw(99, begin + i)[0]) - 0.5;
      predicted += gradient[begin + i] * direction[i];
    }
    const auto at = [&](double distance) {
      moved = weights;
      for (std::size_t i = 0; i < count; ++i) moved[begin + i] += distance * direction[i];
      backend->upload(store.weights(), moved.data());
      return forward();
    };
    const double measured = (at(h) - at(-h)) / (2 * h);
    EXPECT_NEAR(predicted, measured, 1e-6 * std::max(1.0, std::abs(measured))) << parameter.name;
    EXPECT_EQ(predicted == 0.0, parameter.wide) << parameter.name;
  }
}
INSTANTIATE_TEST_SUITE_P(
    Families, GradientTest,
    testing::Combine(testing::Values(Family::Gpt2, Family::Llama, Family::Qwen2, Family::Qwen3,
                                     Family::Bloom, Family::Olmo2, Family::Olmo3, Family::Retnet,
                                     Family::Olmoe, Family::Qwen3Moe, Family::Dots1,
                                     Family::Glm4Moe, Family::DeepseekV3),
                     testing::Bool(), testing::Values(0)));
INSTANTIATE_TEST_SUITE_P(Classifiers, GradientTest,
                         testing::Combine(testing::Values(Family::Gpt2, Family::Llama,
                                                          Family::DeepseekV3),
                                          testing::Values(true), testing::Values(3)));

}  // namespace
}  // namespace kintsugi
