// Examples in samples: packed ones train as single ones do, and as transformers trains them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/cpu_backend.h"
#include "data/sampling/packing_index.h"
#include "data/sampling/sample_reader.h"
#include "data/stores/token_store.h"
#include "model/initialize.h"
#include "support/counting_store.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "tensor/safetensors.h"
#include "train/engine.h"
#include "train/run_data.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

TokenBatch batch_of(const SampleBatch& batch) {
  return {batch.ids, batch.targets, batch.positions, batch.document_start};
}

// ---- packed and single examples

class ExampleSamplesTest : public testing::TestWithParam<const char*> {
 protected:
  // Examples of 2 to 12 tokens, some of which are trained.
  ExampleSamplesTest() {
    std::mt19937 random(11);
    std::vector<Tokens> documents;
    std::string mask;
    for (int i = 0; i < 12; ++i) {
      Tokens& document = documents.emplace_back();
      for (std::size_t j = 0; j < 2 + random() % 11; ++j) {
        document.push_back(static_cast<std::int32_t>(random() % 64));
        mask += static_cast<char>(random() % 3 != 0);
      }
      mask.back() = 1;
    }
    shards_ = one_shard(TokenShard::open(write_store(directory_, "examples", documents, mask)));
    stream_ = hold_out(shards_, 0).train;
  }
  // All samples of an epoch, in one batch.
  SampleBatch samples(PackingRule rule) {
    const PackingIndex index = PackingIndex::in_memory(stream_, kLength, rule);
    const SampleOptions options{.length = kLength,
                                .vocab_size = 64,
                                .document_mask = true,
                                .boundary_loss = false,
                                .packed = true};
    SampleBatch batch(index.summary().samples, options);
    SampleReader reader(options);
    for (std::int64_t i = 0; i < index.summary().samples; ++i) {
      std::vector<TokenRange> ranges;
      index.locate(i, stream_, ranges);
      reader.read(ranges, batch, i);
    }
    return batch;
  }
  std::unique_ptr<Engine> engine(std::int64_t micro) {
    auto engine = std::make_unique<Engine>(
        *backend_, *backend_,
        EngineOptions{
            .model = parse_model_yaml("family: " + std::string(GetParam()) +
                                          "\nvocab_size: 64\nhidden_size: 16\nlayers: 2\nheads: 4\n"
                                          "max_positions: 64\n",
                                      "test"),
            .precision = DType::F64,
            .layout = {.micro_batch = micro},
            .length = kLength,
            .documents = true});
    engine->initialize(5);
    return engine;
  }
  std::vector<double> weights(Engine& engine) {
    std::vector<double> all;
    for (int i = 0; i < static_cast<int>(engine.parameters().parameters().size()); ++i) {
      const Tensor weight = engine.sharding().store().weight(i);
      const std::size_t begin = all.size();
      all.resize(begin + static_cast<std::size_t>(weight.elements()));
      backend_->download(all.data() + begin, weight);
    }
    return all;
  }

  static constexpr std::int64_t kLength = 24;
  TemporaryDirectory directory_;
  std::vector<TokenShard> shards_;
  TokenStream stream_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(2);
};

INSTANTIATE_TEST_SUITE_P(Families, ExampleSamplesTest, testing::Values("llama", "gpt2", "bloom"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ExampleSamplesTest, PackedExamplesTrainAsSingleOnes) {
  const SampleBatch packed = samples(PackingRule::BestFit), single = samples(PackingRule::Single);
  const auto trained = [](const SampleBatch& batch) {
    return std::count_if(batch.targets.begin(), batch.targets.end(),
                         [](std::int32_t target) { return target >= 0; });
  };
  ASSERT_EQ(single.ids.size(), 12u * kLength);
  ASSERT_LT(packed.ids.size(), 6u * kLength);
  ASSERT_EQ(trained(packed), trained(single));
  const auto one = engine(2), other = engine(3);
  for (std::int64_t step = 1; step <= 3; ++step) {
    const StepSettings settings{.step = step, .lr = 1e-3};
    const StepResult a = one->step(batch_of(packed), settings),
                     b = other->step(batch_of(single), settings);
    EXPECT_NEAR(a.loss, b.loss, 1e-12 * b.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-12 * b.gradient_norm);
  }
  const std::vector<double> a = weights(*one), b = weights(*other);
  double largest = 0;
  for (std::size_t i = 0; i < b.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  EXPECT_LT(largest, 1e-12);
}

// ---- against transformers

template <class T>
std::vector<T> reference_values(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(*file.find(name));
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

// 20 steps of four examples, which PyTorch computed in padded rows: here they are one packed row.
TEST(PackedExamples, TrainAsInTransformers) {
  constexpr std::size_t kSteps = 20, kRows = 4, kWidth = 20;
  const fs::path data = test_data_directory();
  const SafetensorsFile expected(data / "finetune/sft.safetensors");
  const auto ids = reference_values<std::int32_t>(expected, "ids"),
             labels = reference_values<std::int32_t>(expected, "labels"),
             lengths = reference_values<std::int32_t>(expected, "lengths");
  const auto losses = reference_values<float>(expected, "losses"),
             norms = reference_values<float>(expected, "norms");
  std::vector<Tokens> documents;
  std::string mask;
  for (std::size_t row = 0; row < kSteps * kRows; ++row) {
    Tokens& document = documents.emplace_back();
    for (std::size_t i = 0; i < static_cast<std::size_t>(lengths[row]); ++i) {
      document.push_back(ids[row * kWidth + i]);
      mask += static_cast<char>(labels[row * kWidth + i] >= 0);
    }
  }
  const TemporaryDirectory directory;
  const TokenShard shard = TokenShard::open(write_store(directory, "sft", documents, mask));
  const auto backend = make_cpu_backend(2);
  const ModelConfig model = read_hf_config(data / "llama/config.json");
  const auto length = static_cast<std::int64_t>(kRows * kWidth);
  Engine engine(*backend, *backend, {.model = model, .length = length, .documents = true});
  engine.prepare();
  FileLoader loader(*backend);
  const SafetensorsModel files(data / "llama");
  const StoredParameters stored(loader, files, engine.parameters());
  engine.write_weights(stored, stored);
  loader.run();
  const SampleOptions options{.length = length,
                              .vocab_size = model.vocab_size,
                              .document_mask = true,
                              .boundary_loss = false,
                              .packed = true};
  SampleBatch batch(1, options);
  SampleReader reader(options);
  for (std::size_t step = 0; step < kSteps; ++step) {
    std::vector<TokenRange> ranges;
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto document = static_cast<std::int64_t>(step * kRows + row);
      const std::int64_t first = shard.document_begin(document);
      ranges.push_back({&shard, first, shard.document_begin(document + 1) - first});
    }
    reader.read(ranges, batch, 0);
    const StepResult result =
        engine.step(batch_of(batch), {.step = static_cast<std::int64_t>(step) + 1, .lr = 1e-3});
    EXPECT_NEAR(result.loss, losses[step], 1e-5 * losses[step]) << step;
    EXPECT_NEAR(result.gradient_norm, norms[step], 1e-5 * std::max(1.0F, norms[step])) << step;
  }
}

// ---- the data of a run

class ExampleRunTest : public testing::Test {
 protected:
  // A store of bytes as `data prepare-chat` describes it.
  std::string store(const std::string& name, const std::string& kind,
                    const std::vector<Tokens>& documents) {
    std::string mask, labels;
    std::int64_t longest = 0;
    for (const Tokens& document : documents) {
      mask.append(document.size(), '\1');
      put_little_endian(labels, static_cast<std::uint64_t>(document[0] % 2), 4);
      longest = std::max(longest, static_cast<std::int64_t>(document.size()));
    }
    const std::string prefix = write_store(directory_, name, documents, mask);
    StoreInfo info;
    if (kind == "classification") {
      directory_.write(name + ".labels", labels);
      info.labels = {"even", "odd"};
    }
    info.kind = kind;
    info.vocab_size = 256;
    info.longest = longest;
    info.shards = {{name, "", "", ""}};
    write_store_info(prefix, info);
    return prefix;
  }
  RunConfig config(const std::string& path, const std::string& objective,
                   std::vector<std::string> more = {}) {
    more.push_back("objective=" + objective);
    return parse_run_config(small_config(path, directory_ / "run", "steps: 5"), "test.yaml", more);
  }
  std::string error(const std::string& path, const std::string& objective,
                    const std::vector<std::string>& more = {}) {
    return user_error_of([&] {
      RunConfig read = config(path, objective, more);
      const RunData data(read);
    });
  }
  static std::vector<Tokens> examples(int count) {
    std::vector<Tokens> all;
    for (int i = 0; i < count; ++i) all.push_back({i, 2, 3, 4, 5});
    return all;
  }
  TemporaryDirectory directory_;
};

TEST_F(ExampleRunTest, ExamplesArePackedWholeByDefault) {
  const std::string path = store("chat", "chat", examples(100));
  RunConfig read = config(path, "sft");
  EXPECT_EQ(read.data.packing, Packing::BestFit);
  EXPECT_TRUE(read.data.document_mask);
  EXPECT_FALSE(read.data.boundary_loss);
  const RunData data(read);
  ASSERT_TRUE(data.sources()[0].packing.has_value());
  EXPECT_EQ(data.sources()[0].packing->whole, 90);
  // Every tenth example is held out.
  ASSERT_EQ(data.validation().size(), 1u);
  std::vector<TokenRange> ranges;
  for (std::int64_t i = 0; i < data.validation()[0].size(); ++i)
    data.validation()[0].locate(i, ranges);
  Tokens held;
  for (const TokenRange& range : ranges) {
    EXPECT_EQ(range.count, 5);
    held.push_back(static_cast<std::int32_t>(range.first / 5));
  }
  EXPECT_EQ(held, (Tokens{9, 19, 29, 39, 49, 59, 69, 79, 89, 99}));
  EXPECT_TRUE(data.validation_options().packed);
  // RetNet has no document masks.
  RunConfig retnet =
      config(path, "sft",
             {"model={family: retnet, vocab_size: 256, hidden_size: 32, "
              "layers: 1, heads: 2, value_size: 64, ffn_size: 48, max_positions: 64}"});
  EXPECT_EQ(retnet.data.packing, Packing::Single);
  EXPECT_FALSE(retnet.data.document_mask);
  EXPECT_EQ(RunData(retnet).sources()[0].packing->samples, 90);
}

TEST_F(ExampleRunTest, SettingsThatWouldMixExamplesAreRefused) {
  const std::string path = store("chat", "chat", examples(20));
  EXPECT_THAT(error(path, "sft", {"data.packing=windows"}),
              AllOf(HasSubstr("data.packing is windows"), HasSubstr("best_fit or single")));
  EXPECT_THAT(error(path, "sft", {"data.boundary_loss=true"}), HasSubstr("data.boundary_loss"));
  EXPECT_THAT(error(path, "sft", {"data.document_mask=false"}),
              HasSubstr("data.packing to single"));
  EXPECT_THAT(error(path, "dpo", {"data.document_mask=false", "data.packing=single"}),
              HasSubstr("both answers"));
  RunConfig single = config(path, "sft", {"data.document_mask=false", "data.packing=single"});
  EXPECT_EQ(RunData(single).sources()[0].packing->samples, 18);
}

TEST_F(ExampleRunTest, TheStoreMustFitTheObjective) {
  const std::string chat = store("chat", "chat", examples(20)),
                    pairs = store("pairs", "preference", examples(20)),
                    labels = store("labels", "classification", examples(20)),
                    plain = write_store(directory_, "plain", examples(20));
  EXPECT_THAT(error(plain, "sft"), AllOf(HasSubstr("objective sft needs examples"),
                                         HasSubstr("/plain has text"), HasSubstr("prepare-chat")));
  EXPECT_THAT(error(labels, "sft"), HasSubstr("kind classification"));
  EXPECT_THAT(error(chat, "dpo", {"run.from=elsewhere"}),
              HasSubstr("objective dpo needs preference pairs"));
  EXPECT_THAT(error(pairs, "language_model"), HasSubstr("objective: dpo"));
}

TEST_F(ExampleRunTest, AnExampleThatDoesNotFitIsNamed) {
  std::vector<Tokens> documents = examples(20);
  documents[7].resize(25, 1);
  EXPECT_THAT(error(store("chat", "chat", documents), "sft"),
              AllOf(HasSubstr("/chat: example 7 has 25 tokens"),
                    HasSubstr("data.sequence_length is 24"), HasSubstr("--max-length 24")));
}

}  // namespace
}  // namespace kintsugi
