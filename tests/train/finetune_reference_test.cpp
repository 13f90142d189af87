// Fine-tuning against runs of PyTorch, transformers and PEFT
// (tests/data/make_finetune_fixtures.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "backend/cpu/cpu_backend.h"
#include "model/initialize.h"
#include "model/lora.h"
#include "support/paths.h"
#include "tensor/safetensors.h"
#include "train/engine.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 20, kRows = 4, kLength = 20;
constexpr double kTolerance = 1e-5;

template <class T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* const entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  const auto bytes = file.bytes(*entry);
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

// The rows of one step: ids, and the next token as the target where `counts` says so.
struct StepRows {
  std::vector<std::int32_t> ids, targets;
  template <class Counts>
  StepRows(const std::vector<std::int32_t>& all, std::int64_t step, const Counts& counts)
      : ids(all.begin() + step * kRows * kLength, all.begin() + (step + 1) * kRows * kLength),
        targets(ids.size(), -1) {
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t i = 0; i + 1 < kLength; ++i)
        if (counts(step * kRows + row, i + 1))
          targets[static_cast<std::size_t>(row * kLength + i)] =
              ids[static_cast<std::size_t>(row * kLength + i + 1)];
  }
};

EngineOptions options_of(const ModelConfig& model) {
  return {
      .model = model,
      .layout = {.dp = 1, .micro_batch = 2},
      .batch = kRows,
      .length = kLength,
      .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0}};
}

void expect_steps(Engine& engine, const SafetensorsFile& expected,
                  const std::function<StepRows(std::int64_t)>& rows_of) {
  const auto losses = values<float>(expected, "losses"), norms = values<float>(expected, "norms");
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const StepRows rows = rows_of(step);
    const StepResult result = engine.step({.ids = rows.ids, .targets = rows.targets},
                                          {.step = step + 1, .lr = 1e-3, .seed = 1});
    const auto at = static_cast<std::size_t>(step);
    EXPECT_NEAR(result.loss, losses[at], kTolerance * std::max(1.0f, losses[at])) << step;
    EXPECT_NEAR(result.gradient_norm, norms[at], kTolerance * std::max(1.0f, norms[at])) << step;
  }
}

TEST(FinetuneReference, SupervisedStepsAreThoseOfTransformers) {
  const fs::path base = fs::path(test_data_directory()) / "llama";
  const SafetensorsFile expected(fs::path(test_data_directory()) / "finetune/sft.safetensors");
  const auto backend = make_cpu_backend(2);
  Engine engine(*backend, *backend, options_of(read_model_directory(base)));
  engine.prepare();
  FileLoader loader(*backend);
  const SafetensorsModel files(base);
  const StoredParameters weights(loader, files, engine.parameters());
  engine.write_weights(weights, weights);
  loader.run();
  const auto ids = values<std::int32_t>(expected, "ids"),
             labels = values<std::int32_t>(expected, "labels");
  expect_steps(engine, expected, [&](std::int64_t step) {
    return StepRows(ids, step, [&](std::int64_t row, std::int64_t i) {
      return labels[static_cast<std::size_t>(row * kLength + i)] >= 0;
    });
  });
}

struct AdapterCase {
  const char* name;
  const char* base;
  LoraConfig lora;
};

class AdapterReference : public testing::TestWithParam<AdapterCase> {};

TEST_P(AdapterReference, StepsAndAdaptersAreThoseOfPeft) {
  const fs::path data = test_data_directory(), base = data / GetParam().base;
  const fs::path adapter = data / "finetune" / (std::string("lora-") + GetParam().name);
  const SafetensorsFile expected(adapter / "expected.safetensors");
  ModelConfig model = read_model_directory(base);
  model.lora = GetParam().lora;
  const auto backend = make_cpu_backend(2);
  Engine engine(*backend, *backend, options_of(model));
  engine.prepare();
  FileLoader loader(*backend);
  const SafetensorsModel base_files(base), adapter_files(adapter / "adapter_model.safetensors");
  const auto is_adapter = [](const Parameter& p) { return p.group == ParameterGroup::Adapter; };
  const ParameterSet& set = engine.parameters();
  const StoredParameters from_base(loader, base_files, set, "",
                                   [&](const Parameter&p) { return !is_adapter(p); }),
      from_adapter(loader, adapter_files, set, "", is_adapter);
  const ChosenParameters weights([&](const Parameter& p) -> const ParameterSource& {
    return is_adapter(p) ? from_adapter : from_base;
  });
  engine.write_weights(weights, weights);
  loader.run();
  const auto ids = values<std::int32_t>(expected, "step_ids"),
             lengths = values<std::int32_t>(expected, "step_lengths");
  expect_steps(engine, expected, [&](std::int64_t step) {
    return StepRows(ids, step, [&](std::int64_t row, std::int64_t i) {
      return i < lengths[static_cast<std::size_t>(row)];
    });
  });
  std::size_t adapters = 0;
  for (int i = 0; i < static_cast<int>(set.parameters().size()); ++i) {
    if (!is_adapter(set[i])) continue;
    ++adapters;
    const auto final = values<float>(expected, "final." + set[i].name);
    std::vector<float> own(final.size());
    backend->download(own.data(), engine.sharding().store().weight(i));
    for (std::size_t k = 0; k < own.size(); ++k)
      ASSERT_NEAR(own[k], final[k], 2e-5) << set[i].name << " " << k;
  }
  EXPECT_EQ(adapters, adapter_files.names().size());
}
INSTANTIATE_TEST_SUITE_P(
    Adapters, AdapterReference,
    testing::Values(
        AdapterCase{"llama", "llama", {.r = 4, .alpha = 8, .targets = {"all-linear"}}},
        AdapterCase{"rs", "llama", {.r = 4, .alpha = 8, .rslora = true}},
        AdapterCase{"gpt2", "gpt2", {.r = 4, .alpha = 8, .targets = {"c_attn", "c_proj", "c_fc"}}},
        AdapterCase{"bloom", "bloom", {.r = 4, .alpha = 8, .targets = {"query_key_value"}}}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace kintsugi
