// A model with an adapter of PEFT against the logits that PEFT computes
// (tests/data/make_finetune_fixtures.py), on one and on several tensor ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "comm/communicator.h"
#include "serve/inference_engine.h"
#include "support/paths.h"
#include "support/thread_world.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

const fs::path kFixtures = test_data_directory();

template <class T>
std::vector<T> values_in(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct ExpectedTexts {
  explicit ExpectedTexts(const std::string& name, const std::string& tensor = "logits")
      : file(kFixtures / "finetune" / ("lora-" + name) / "expected.safetensors") {
    const auto& shape = file.find("logits")->shape;
    const auto length = static_cast<std::size_t>(shape[1]),
               words = static_cast<std::size_t>(shape[2]);
    const auto ids = values_in<std::int32_t>(file, "ids"),
               lengths = values_in<std::int32_t>(file, "lengths");
    const auto logits = values_in<float>(file, tensor);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(i * length);
      texts.emplace_back(begin, begin + lengths[i]);
      std::vector<double>& scores = logprobs.emplace_back();
      for (std::size_t t = 1; t < texts.back().size(); ++t) {
        const float* row = logits.data() + (i * length + t - 1) * words;
        double sum = 0;
        for (std::size_t w = 0; w < words; ++w) sum += std::exp(static_cast<double>(row[w]));
        scores.push_back(row[texts.back()[t]] - std::log(sum));
      }
    }
  }
  SafetensorsFile file;
  std::vector<Ids> texts;
  std::vector<std::vector<double>> logprobs;  // of each token after the first
};

void expect_scores(InferenceEngine& engine, const ExpectedTexts& expected, double tolerance) {
  for (std::size_t i = 0; i < expected.texts.size(); ++i) {
    std::vector<double> scores;
    engine.submit({.prompt = expected.texts[i], .score_from = 1},
                  {.on_scores = [&](const std::vector<SampledToken>& tokens) {
                    for (const SampledToken& token : tokens) scores.push_back(*token.logprob);
                  }});
    engine.run();
    ASSERT_EQ(scores.size(), expected.logprobs[i].size());
    for (std::size_t t = 0; t < scores.size(); ++t)
      EXPECT_NEAR(scores[t], expected.logprobs[i][t], tolerance) << i << " " << t;
  }
}

InferenceOptions with_adapter(const std::string& name, DType precision = DType::F32) {
  return {.precision = precision,
          .max_length = 32,
          .max_sequences = 1,
          .adapter = kFixtures / "finetune" / ("lora-" + name)};
}

const std::vector<std::pair<std::string, std::string>> kAdapters = {
    {"llama", "llama"}, {"rs", "llama"}, {"gpt2", "gpt2"}, {"bloom", "bloom"}};

TEST(InferenceAdapter, HasTheLogitsOfPeft) {
  for (const auto& [name, base] : kAdapters) {
    SCOPED_TRACE(name);
    const auto backend = make_cpu_backend(1);
    LocalCommunicator alone("tensor", backend.get());
    InferenceEngine merged(*backend, alone, kFixtures / base, with_adapter(name));
    expect_scores(merged, ExpectedTexts(name), 1e-5);
    InferenceEngine plain(*backend, alone, kFixtures / base,
                          {.max_length = 32, .max_sequences = 1});
    expect_scores(plain, ExpectedTexts(name, "base_logits"), 1e-5);
  }
}

// Four ranks of two key-value heads: two ranks hold the same ones.
TEST(InferenceAdapter, TensorRanksHaveTheSameLogits) {
  for (const auto& [name, base] : kAdapters)
    for (const int ranks : {2, 4}) {
      if (name == "rs") continue;
      SCOPED_TRACE(name);
      run_ranks(ranks, [&](World& world) {
        const auto backend = make_cpu_backend(1);
        const auto tensor = world.split("tensor", 0, world.rank());
        InferenceEngine engine(*backend, *tensor, kFixtures / base, with_adapter(name));
        if (world.rank() > 0) return engine.follow();
        expect_scores(engine, ExpectedTexts(name), 1e-5);
      });
    }
}

// 16-bit weights are rounded once, after the sum: the difference is that of rounded weights.
TEST(InferenceAdapter, WorksIn16Bits) {
  const auto backend = make_cpu_backend(1);
  LocalCommunicator alone("tensor", backend.get());
  InferenceEngine engine(*backend, alone, kFixtures / "llama", with_adapter("llama", DType::BF16));
  expect_scores(engine, ExpectedTexts("llama"), 0.1);
}

}  // namespace
}  // namespace kintsugi
