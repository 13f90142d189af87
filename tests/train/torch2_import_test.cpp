// Checkpoints that PyTorch 2 wrote (tests/data/make_torch2_fixtures.py), against the models that
// transformers wrote: their weights, logits, optimizer states and next steps.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "model/config.h"
#include "model/import/import.h"
#include "model/initialize.h"
#include "model/whole_model.h"
#include "support/directory_contents.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/temporary_directory.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/checkpoint.h"
#include "train/engine.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path data() { return fs::path(test_data_directory()) / "import/torch2"; }

struct Torch2Fixture {
  const char *checkpoint, *model;
  friend void PrintTo(const Torch2Fixture& fixture, std::ostream* out) {
    *out << fixture.checkpoint;
  }
};
constexpr Torch2Fixture kFixtures[] = {{"dcp-llama", "llama"},
                                       {"dcp-llama-2d", "llama"},
                                       {"dcp-llama-adamw", "llama-adamw"},
                                       {"dcp-qwen3-adamw", "qwen3-adamw"},
                                       {"torch-dist-llama", "llama"},
                                       {"torch-dist-qwen3", "qwen3"},
                                       {"megatron-llama", "llama"},
                                       {"megatron-qwen2", "qwen2"}};

template <class T>
std::vector<T> values(const SafetensorsModel::Location& found) {
  std::vector<T> all(found.bytes().size() / sizeof(T));
  std::memcpy(all.data(), found.bytes().data(), found.bytes().size());
  return all;
}

template <class T>
std::vector<T> expected(const std::string& model, const std::string& name) {
  const SafetensorsModel file(data() / model / "expected.safetensors");
  const auto found = file.find(name);
  if (!found) throw std::runtime_error("no " + name);
  return values<T>(found);
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  double largest = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
    norm = std::max(norm, std::abs(double{b[i]}));
  }
  EXPECT_LE(largest, tolerance * std::max(1.0, norm)) << what;
}

// Of two sequences of tokens.
std::vector<float> logits_of(const fs::path& directory, const std::vector<std::int32_t>& ids) {
  const ModelConfig config = read_model_directory(directory);
  const std::int64_t sequences = 2, length = static_cast<std::int64_t>(ids.size()) / sequences;
  const auto backend = make_cpu_backend(1);
  Arena arena(*backend);
  const ParameterSet set(config);
  ParameterStore store(set, arena, DType::F32, true);
  WholeModel model(*backend, arena, store, config,
                   StageOptions{.sequences = sequences, .length = length});
  model.prepare();
  load_parameters(*backend, store, SafetensorsModel(directory), config);
  std::vector<std::int32_t> positions(ids.size()), targets(ids.size(), -1);
  for (std::size_t i = 0; i < ids.size(); ++i)
    positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(length));
  const auto put = [&](const std::vector<std::int32_t>& numbers) {
    const Tensor x = arena.allocate(Region::Workspace, "batch", DType::I32,
                                    {static_cast<std::int64_t>(numbers.size())});
    backend->upload(x, numbers.data());
    return x;
  };
  const Tensor logits = model.all_logits({.sequences = sequences,
                                          .length = length,
                                          .ids = put(ids),
                                          .targets = put(targets),
                                          .positions = put(positions)});
  std::vector<float> all;
  for (std::int64_t row = 0; row < logits.extent(0); ++row) {  // rows may be padded
    std::vector<float> one(static_cast<std::size_t>(config.vocab_size));
    backend->download(one.data(), logits.rows(row, 1));
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

class Torch2Import : public testing::TestWithParam<Torch2Fixture> {};

TEST_P(Torch2Import, HasTheWeightsAndLogitsOfTheModel) {
  const fs::path model = data() / GetParam().model;
  const TemporaryDirectory directory;
  import_model(data() / GetParam().checkpoint, read_model_directory(model), directory / "m");
  const SafetensorsModel own(directory / "m"), original(model);
  ASSERT_EQ(own.names().size(), original.names().size());
  for (const std::string& name : original.names()) {
    ASSERT_TRUE(own.find(name)) << name;
    EXPECT_EQ(own.find(name).entry->shape, original.find(name).entry->shape) << name;
    // Those with an optimizer have made a step of their own.
    const double tolerance = std::string(GetParam().model).ends_with("adamw") ? 1e-6 : 0;
    expect_near(values<float>(own.find(name)), values<float>(original.find(name)), tolerance, name);
  }
  const auto ids = expected<std::int32_t>(GetParam().model, "input_ids");
  expect_near(logits_of(directory / "m", ids), expected<float>(GetParam().model, "logits"), 1e-6,
              "logits");
}

INSTANTIATE_TEST_SUITE_P(All, Torch2Import, testing::ValuesIn(kFixtures), [](const auto& info) {
  std::string name = info.param.checkpoint;
  std::erase(name, '-');
  return name;
});

// ---- the optimizer

void import_with_optimizer(const std::string& checkpoint, const std::string& model,
                           const fs::path& output, ImportOptions options = {}) {
  options.trainer = [](std::int64_t step, DType precision) {
    TrainerState state;
    state.step = step;
    return state_to_json(state, precision);
  };
  import_model(data() / checkpoint, read_model_directory(data() / model), output, options);
}

class Torch2Optimizer : public testing::TestWithParam<Torch2Fixture> {};

TEST_P(Torch2Optimizer, MomentsAreThoseOfTheModel) {
  const TemporaryDirectory directory;
  const std::string model = GetParam().model;
  import_with_optimizer(GetParam().checkpoint, model, directory / "m");
  EXPECT_EQ(saved_state(directory / "m").step, 1);
  EXPECT_EQ(saved_precision(directory / "m"), DType::F32);
  const SafetensorsModel weights(directory / "m"), state(directory / "m/optimizer", "optimizer");
  EXPECT_EQ(state.names().size(), 2 * weights.names().size());
  for (const std::string& weight : weights.names())
    for (const std::string moment : {"exp_avg.", "exp_avg_sq."}) {
      const std::string name = moment + weight;
      ASSERT_TRUE(state.find(name)) << name;
      EXPECT_EQ(state.find(name).entry->shape, weights.find(weight).entry->shape) << name;
      const auto wanted = expected<float>(model, name);
      const double largest =
          std::abs(*std::ranges::max_element(wanted, {}, [](float x) { return std::abs(x); }));
      const auto own = values<float>(state.find(name));
      ASSERT_EQ(own.size(), wanted.size()) << name;
      for (std::size_t i = 0; i < own.size(); ++i)
        ASSERT_NEAR(own[i], wanted[i], 1e-6 * largest) << name << " " << i;
    }
}

EngineOptions options_of(const ModelConfig& model, std::int64_t length, DType precision) {
  return {.model = model,
          .precision = precision,
          .layout = {.dp = 1, .micro_batch = 1},
          .batch = 2,
          .length = length,
          .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0, .clip = 0}};
}

// The checkpoint of the imported state after one step of the fixture's tokens.
fs::path after_a_step(const fs::path& imported, const std::string& model, const fs::path& folder,
                      DType precision) {
  const auto ids = expected<std::int32_t>(model, "input_ids");
  const auto length = static_cast<std::int64_t>(ids.size()) / 2;
  std::vector<std::int32_t> targets(ids.size(), -1);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i)
    if ((i + 1) % static_cast<std::size_t>(length) != 0) targets[i] = ids[i + 1];
  const auto backend = make_cpu_backend(1);
  Engine engine(*backend, *backend, options_of(read_model_directory(imported), length, precision));
  engine.prepare();
  TrainerState state = load_checkpoint(imported, engine);
  ++state.step;
  engine.step({.ids = ids, .targets = targets}, {.step = state.step, .lr = 1e-2});
  return save_checkpoint(folder, engine, state, {});
}

TEST_P(Torch2Optimizer, TheNextStepIsThatOfPyTorch) {
  const TemporaryDirectory directory;
  const std::string model = GetParam().model;
  import_with_optimizer(GetParam().checkpoint, model, directory / "m");
  const SafetensorsModel before(directory / "m"),
      after(after_a_step(directory / "m", model, directory / "checkpoints", DType::F32));
  double moved = 0;
  for (const std::string& name : after.names()) {
    const auto own = values<float>(after.find(name)),
               wanted = expected<float>(model, "next." + name),
               old = values<float>(before.find(name));
    ASSERT_EQ(own.size(), wanted.size()) << name;
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_NEAR(own[i], wanted[i], 1e-5) << name << " " << i;
      moved = std::max(moved, std::abs(double{own[i]} - double{old[i]}));
    }
  }
  EXPECT_GT(moved, 5e-3);
}

// The model is rounded to bf16: training continues from the unrounded weights.
TEST_P(Torch2Optimizer, MasterWeightsAreNotRounded) {
  const TemporaryDirectory directory;
  const std::string model = GetParam().model;
  import_with_optimizer(GetParam().checkpoint, model, directory / "m",
                        {.output = {.dtype = DType::BF16, .max_shard_bytes = 3000}});
  EXPECT_EQ(saved_precision(directory / "m"), DType::BF16);
  const SafetensorsModel state(directory / "m/optimizer", "optimizer"), original(data() / model);
  for (const std::string& name : original.names())
    expect_near(values<float>(state.find("master." + name)), values<float>(original.find(name)),
                1e-6, name);
  // Loaded in fp32, it is the same step as from the fp32 checkpoint.
  const SafetensorsModel after(
      after_a_step(directory / "m", model, directory / "checkpoints", DType::F32));
  for (const std::string& name : after.names())
    expect_near(values<float>(after.find(name)), expected<float>(model, "next." + name), 1e-5,
                name);
}

// Every file of the output is in its list of checksums.
TEST_P(Torch2Optimizer, DamageIsFound) {
  const TemporaryDirectory directory;
  import_with_optimizer(GetParam().checkpoint, GetParam().model, directory / "m");
  for (const auto& [name, content] : directory_contents(directory / "m")) {
    if (name == "checksums.json" || content == "a directory") continue;
    const fs::path file = directory / "m" / name;
    std::string changed = content;
    changed[changed.size() / 2] ^= 1;
    std::ofstream(file, std::ios::binary) << changed;
    EXPECT_THROW(after_a_step(directory / "m", GetParam().model, directory / "c", DType::F32),
                 UserError)
        << name;
    std::ofstream(file, std::ios::binary) << content;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Torch2Optimizer, testing::Values(kFixtures[2], kFixtures[3]),
                         [](const auto& info) {
                           std::string name = info.param.checkpoint;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Torch2Import, AMissingStateIsRefused) {
  const TemporaryDirectory directory;
  const auto mistake = [&](const std::string& checkpoint, const std::string& model) {
    const std::string text =
        user_error_of([&] { import_with_optimizer(checkpoint, model, directory / "m"); });
    EXPECT_FALSE(fs::exists(directory / "m"));
    return text;
  };
  EXPECT_THAT(mistake("dcp-llama", "llama"),
              HasSubstr("has no tensor optimizer.state.tok_embeddings.weight.exp_avg: the state "
                        "of AdamW is not in it"));
  EXPECT_THAT(mistake("torch-dist-llama", "llama"), HasSubstr("only torchtitan's AdamW"));
  EXPECT_THAT(mistake("megatron-llama", "llama"), HasSubstr("only torchtitan's AdamW"));
}

// The arguments of a run are checked where Megatron now has them: in a blob of the checkpoint.
TEST(Torch2Import, ArgumentsOfCommonStateAreChecked) {
  const TemporaryDirectory directory;
  ModelConfig config = read_model_directory(data() / "qwen3");
  config.norm_eps = 1e-5;
  EXPECT_THAT(
      user_error_of([&] { import_model(data() / "torch-dist-qwen3", config, directory / "m"); }),
      HasSubstr("norm_epsilon 1e-06, but norm_eps of --model is 1e-05"));
}

}  // namespace
}  // namespace kintsugi
