// Compares logits, loss and every gradient with models of transformers and PyTorch's autograd
// (tests/data/make_fixtures.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "backend/backends.h"
#include "model/initialize.h"
#include "model/whole_model.h"
#include "support/paths.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
const fs::path kData = test_data_directory();

template <class T>
std::vector<T> read_entry(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) throw std::runtime_error("no " + name);
  const auto bytes = file.bytes(*entry);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<double> to_host(Backend& backend, const Tensor& x) {
  if (!x.contiguous()) {  // rows with padding between them
    std::vector<double> all;
    for (std::int64_t row = 0; row < x.extent(0); ++row) {
      const std::vector<double> one = to_host(backend, x.rows(row, 1));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  std::vector<double> values(static_cast<std::size_t>(x.elements()));
  visit_float(x.dtype(), [&]<class T>() {
    std::vector<T> stored(values.size());
    backend.download(stored.data(), x);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(static_cast<Accumulator<T>>(stored[i]));
  });
  return values;
}

// || a - b || / || b ||
template <class T>
double relative_error(const std::vector<double>& a, const std::vector<T>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

struct Case {
  const char* name;
  DType dtype;
  Recompute recompute = Recompute::None;
  std::size_t backend = 0;  // the CPU, which every machine has
};

// The model of a fixture with one micro-batch of its tokens on the device.
class FixtureModel {
 public:
  explicit FixtureModel(const Case& c, std::int64_t chunk = 0)
      : expected_(kData / c.name / "expected.safetensors"),
        config_(read_hf_config(kData / c.name / "config.json")),
        backend_(backends()[c.backend].make()),
        arena_(*backend_),
        set_(config_),
        store_(set_, arena_, c.dtype, true) {
    const SafetensorsEntry* ids = expected_.find("input_ids");
    sequences_ = ids->shape[0];
    length_ = ids->shape[1];
    model_.emplace(*backend_, arena_, store_, config_,
                   StageOptions{.sequences = sequences_,
                                .length = length_,
                                .recompute = c.recompute,
                                .classifier_chunk = chunk});
    model_->prepare();
    load_parameters(*backend_, store_, SafetensorsModel(kData / c.name), config_);
    backend_->fill(store_.gradients(), 0.0);
    loss_sum_ = arena_.allocate(Region::Workspace, "loss", accumulator_of(c.dtype), {1});
    backend_->fill(loss_sum_, 0.0);
    make_batch();
  }

  void make_batch() {
    const auto tokens = read_entry<std::int32_t>(expected_, "input_ids");
    std::vector<std::int32_t> targets(tokens.size()), positions(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool last = (i + 1) % static_cast<std::size_t>(length_) == 0;
      targets[i] = last ? -1 : tokens[i + 1];
      positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(length_));
    }
    const auto put = [&](const std::vector<std::int32_t>& values) {
      const Tensor x = arena_.allocate(Region::Workspace, "batch", DType::I32,
                                       {static_cast<std::int64_t>(values.size())});
      backend_->upload(x, values.data());
      return x;
    };
    batch_ = {.sequences = sequences_,
              .length = length_,
              .ids = put(tokens),
              .targets = put(targets),
              .positions = put(positions)};
  }

  double counted() const { return static_cast<double>(sequences_ * (length_ - 1)); }
  double loss() { return to_host(*backend_, loss_sum_)[0] / counted(); }

  SafetensorsFile expected_;
  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  ParameterSet set_;
  ParameterStore store_;
  std::int64_t sequences_ = 0, length_ = 0;
  std::optional<WholeModel> model_;
  MicroBatch batch_;
  Tensor loss_sum_;
};

struct Tolerance {
  double logits, loss, gradient;
};

// fp32 and fp64 must be well within 1e-4. 16-bit storage rounds every activation to 8 (bf16) or 11
// (fp16) bits.
Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::BF16:
      return {2e-2, 5e-3, 6e-2};
    case DType::F16:
      return {3e-3, 1e-3, 1e-2};
    default:
      return {2e-5, 1e-5, 1e-4};
  }
}

// How often the tokens chose each expert of each layer.
std::vector<double> choices_of(FixtureModel& model) {
  if (!model.config_.experts) return {};
  MicroBatch batch = model.batch_;
  batch.training = true;
  batch.expert_counts =
      model.arena_.allocate(Region::Workspace, "counts", accumulator_of(model.store_.dtype()),
                            {model.config_.layers, model.config_.experts->count});
  model.backend_->fill(batch.expert_counts, 0.0);
  model.model_->evaluate(batch, model.loss_sum_);
  model.backend_->fill(model.loss_sum_, 0.0);
  return to_host(*model.backend_, batch.expert_counts);
}

// Whether rounding made tokens choose other experts than in fp32, which changes the gradients of
// both experts.
bool is_rerouted(FixtureModel& model, const Case& c) {
  if (size_of(c.dtype) > 2) return false;
  FixtureModel unrounded({c.name, DType::F32});
  return choices_of(model) != choices_of(unrounded);
}

class FixtureTest : public testing::TestWithParam<Case> {};

TEST_P(FixtureTest, LogitsLossAndEveryGradientMatchPyTorch) {
  const Tolerance tolerance = tolerance_of(GetParam().dtype);
  FixtureModel model(GetParam());
  const bool rerouted = is_rerouted(model, GetParam());
  const auto logits = to_host(*model.backend_, model.model_->all_logits(model.batch_));
  EXPECT_LT(relative_error(logits, read_entry<float>(model.expected_, "logits")),
            rerouted ? 0.04 * model.config_.experts->scale : tolerance.logits);

  model.model_->forward_backward(model.batch_, 1.0 / model.counted(), model.loss_sum_);
  const double expected_loss = read_entry<float>(model.expected_, "loss")[0];
  EXPECT_NEAR(model.loss(), expected_loss, (rerouted ? 5e-3 : tolerance.loss) * expected_loss);
  std::vector<double> gradients;
  std::vector<float> expected;
  for (std::size_t i = 0; i < model.set_.parameters().size(); ++i) {
    const std::string& name = model.set_[static_cast<int>(i)].name;
    if (model.set_[static_cast<int>(i)].wide) continue;
    const auto gradient = to_host(*model.backend_, model.store_.gradient(static_cast<int>(i)));
    const auto from_file = read_entry<float>(model.expected_, "grad." + name);
    gradients.insert(gradients.end(), gradient.begin(), gradient.end());
    expected.insert(expected.end(), from_file.begin(), from_file.end());
    if (!rerouted) {
      EXPECT_LT(relative_error(gradient, from_file), tolerance.gradient) << name;
    }
  }
  EXPECT_LT(relative_error(gradients, expected), rerouted ? 0.12 : tolerance.gradient);
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = backends()[info.param.backend].name + "_" + info.param.name + "_" +
                     std::string(to_string(info.param.dtype)) + "_" +
                     std::string(to_string(info.param.recompute));
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (std::size_t backend = 0; backend < backends().size(); ++backend)
    for (const char* name : {"gpt2", "llama", "llama2", "llama-tied", "qwen2", "qwen3", "bloom",
                             "bloom-6heads", "llama-yarn", "olmo2", "olmo3", "retnet", "mixtral",
                             "olmoe", "qwen3-moe", "dots1", "glm4-moe", "deepseek-v3"}) {
      for (const DType dtype : backends()[backend].precisions)
        cases.push_back({name, dtype, Recompute::None, backend});
      cases.push_back({name, DType::F32, Recompute::Selective, backend});
      cases.push_back({name, DType::F32, Recompute::Full, backend});
    }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Families, FixtureTest, testing::ValuesIn(all_cases()), case_name);

std::vector<double> gradients_of(const Case& c, std::int64_t chunk) {
  FixtureModel model(c, chunk);
  model.model_->forward_backward(model.batch_, 1.0 / model.counted(), model.loss_sum_);
  return to_host(*model.backend_, model.store_.gradients());
}

// Recomputation repeats the same arithmetic: the results must be bit-identical.
TEST(Recompute, NeverChangesAGradient) {
  for (std::size_t backend = 0; backend < backends().size(); ++backend)
    for (const char* name :
         {"llama", "qwen3", "gpt2", "bloom", "olmo3", "retnet", "olmoe", "glm4-moe", "deepseek-v3"})
      for (const DType dtype : {DType::F32, DType::BF16}) {
        const auto kept = gradients_of({name, dtype, Recompute::None, backend}, 0);
        EXPECT_EQ(kept, gradients_of({name, dtype, Recompute::Selective, backend}, 0)) << name;
        EXPECT_EQ(kept, gradients_of({name, dtype, Recompute::Full, backend}, 0)) << name;
      }
}

TEST(Classifier, ChunksOfAnySizeGiveTheSameGradient) {
  const auto whole = gradients_of({"llama", DType::F64}, 0);
  for (const std::int64_t chunk : {1, 5, 16, 41}) {
    const auto chunked = gradients_of({"llama", DType::F64}, chunk);
    EXPECT_LT(relative_error(chunked, whole), 1e-12) << chunk;
  }
}

// All ways to store the weights in a Hugging Face directory must load the same weights.
TEST(LoadWeights, ShardedAndHalfPrecisionDirectoriesLoad) {
  const auto load = [](const char* name) {
    auto backend = backends().front().make();
    Arena arena(*backend);
    const ModelConfig config = read_hf_config(kData / name / "config.json");
    const ParameterSet set(config);
    const ParameterStore store(set, arena, DType::F32, false);
    backend->fill(store.weights(), 0.0);
    load_parameters(*backend, store, SafetensorsModel(kData / name), config);
    return to_host(*backend, store.weights());
  };
  const auto whole = load("llama");
  EXPECT_EQ(whole, load("llama-sharded"));
  EXPECT_LT(relative_error(load("llama-bf16"), whole), 4e-3);
  EXPECT_LT(relative_error(load("llama-fp16"), whole), 5e-4);
}

}  // namespace
}  // namespace kintsugi
