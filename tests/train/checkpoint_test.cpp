// Checkpoints of many ranks: independent of the layout, exact to the bit, and never partial.
#include "train/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "support/directory_contents.h"
#include "support/parallel_run.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

Training training_of(const std::string& model, DType precision, std::int64_t sequences = 48) {
  return {.model = tiny_model(model, 3),
          .precision = precision,
          .sequences = sequences,
          .micro = 2,
          .dropout = 0.1,
          .documents = true};
}

TrainerState trainer_state_at(std::int64_t step) {
  TrainerState state;
  state.step = step;
  state.tokens = step * 70;
  state.samples = step * 10;
  state.seed = 3;
  state.data = "tiny";
  state.loss_scale = {1024.0, 7, 1};
  return state;
}

constexpr std::uint64_t kSmallFiles = 6000;  // bytes: several files

fs::path save(const fs::path& checkpoints, const Member& member, std::int64_t step,
              std::uint64_t max_bytes = kSmallFiles) {
  return save_checkpoint(checkpoints, member.engine, trainer_state_at(step),
                         {.keep = 0, .max_shard_bytes = max_bytes});
}

// Trains `steps` and saves.
fs::path saved(const fs::path& checkpoints, const RankLayout& layout, const Training& training,
               std::int64_t steps, Outcome& outcome, std::uint64_t max_bytes = kSmallFiles) {
  fs::path directory;
  on_ranks(layout, training, [&](const Member& member) {
    train(member, 1, steps, outcome);
    const fs::path written = save(checkpoints, member, steps, max_bytes);
    if (member.world.rank() == 0) directory = written;
  });
  return directory;
}

// Loads and trains up to and including step `last`.
void resume(const fs::path& directory, const RankLayout& layout, const Training& training,
            std::int64_t last, Outcome& outcome) {
  on_ranks(
      layout, training,
      [&](const Member& member) {
        const TrainerState state = load_checkpoint(directory, member.engine);
        EXPECT_EQ(state, trainer_state_at(state.step));
        train(member, state.step + 1, last, outcome);
      },
      false);
}

std::vector<double> values(const SafetensorsModel::Location& found) {
  std::vector<double> all;
  visit_float(found.entry->dtype.value(), [&]<class T>() {
    std::vector<T> stored(found.bytes().size() / sizeof(T));
    std::memcpy(stored.data(), found.bytes().data(), found.bytes().size());
    for (const T value : stored)
      all.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
  });
  return all;
}

// Returns a random valid layout for four layers, four heads, sequences of 8 tokens and batches
// of 8.
RankLayout random_layout(std::mt19937_64& random) {
  const auto one_of = [&](std::initializer_list<int> values) {
    return values.begin()[random() % values.size()];
  };
  RankLayout layout{.zero = one_of({0, 1, 2, 3}),
                    .tp = one_of({1, 1, 2, 4}),
                    .cp = one_of({1, 1, 2}),
                    .pp = one_of({1, 2, 2, 4})};
  layout.dp = layout.tp * layout.cp * layout.pp > 8 ? 1 : one_of({1, 2, 2});
  layout.sequence_parallel = layout.tp > 1 && random() % 2 == 0;
  const int data = layout.cp * layout.dp;
  if (layout.zero > 0 && data == 4 && random() % 2 == 0) layout.shard_group = 2;
  if (layout.pp == 1) return layout;
  static constexpr std::array kKinds = {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                                        PipelineKind::ZeroBubbleH1, PipelineKind::Interleaved};
  layout.schedule = kKinds[random() % (layout.pp == 2 ? 4 : 3)];
  if (layout.schedule == PipelineKind::Interleaved) layout.chunks = 2;
  if (layout.pp == 2 && layout.chunks == 1 && random() % 2 == 0) layout.split = {3, 1};
  return layout;
}

Training full_training(const std::string& model) {
  return {.model = tiny_model(model, 4),
          .sequences = 8,
          .length = 8,
          .dropout = 0.1,
          .documents = true};
}

// KINTSUGI_SEED=n repeats a failed case; the failure prints n.
TEST(CheckpointOfManyRanks, GoesOnInAnyOtherLayout) {
  const char* given = std::getenv("KINTSUGI_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  fmt::print("KINTSUGI_SEED={}\n", seed);
  std::mt19937_64 random(seed);
  std::map<std::string, Outcome> straight;
  for (int pair = 0; pair < 20; ++pair) {
    const TemporaryDirectory directory;
    const RankLayout from = random_layout(random), to = random_layout(random);
    const std::string& model = tiny_models()[random() % tiny_models().size()];
    const std::string what = fmt::format("KINTSUGI_SEED={}: {}, then {}, {}", seed, to_string(from),
                                         to_string(to), model);
    SCOPED_TRACE(what);
    const Training training = full_training(model);
    if (!straight.contains(model)) straight[model] = trained({}, training, 6);
    Outcome outcome;
    const fs::path step = saved(directory.path(), from, training, 3, outcome);
    resume(step, to, training, 6, outcome);
    expect_same(outcome, straight[model], what);
  }
}

// With fp8 and ZeRO 0, the weights are stored unrounded. The files have them rounded.
TEST(CheckpointOfManyRanks, IsTheSameWithUnroundedWeights) {
  const TemporaryDirectory directory;
  Training training{
      .model = tiny_fp8_model("llama-gqa"), .precision = DType::BF16, .sequences = 4, .length = 32};
  training.optimizer.clip = 0;
  Outcome straight, unrounded, rounded;
  saved(directory / "straight", {.dp = 2}, training, 4, straight);
  const fs::path first = saved(directory / "unrounded", {.dp = 2}, training, 2, unrounded),
                 second = saved(directory / "rounded", {.dp = 2, .zero = 1}, training, 2, rounded);
  const SafetensorsModel one(first), other(second);
  const SafetensorsModel master(state_directory(first), "optimizer");
  for (const std::string& name : one.names()) {
    EXPECT_EQ(one.find(name).entry->dtype, DType::BF16) << name;
    EXPECT_EQ(values(one.find(name)), values(other.find(name))) << name;
    std::vector<double> expected = values(master.find("master." + name));
    for (double& x : expected) x = static_cast<float>(bf16(static_cast<float>(x)));
    EXPECT_EQ(values(one.find(name)), expected) << name;
  }
  resume(first, {.dp = 2, .zero = 1}, training, 4, unrounded);
  resume(second, {.dp = 2}, training, 4, rounded);
  for (const Outcome* const outcome : {&unrounded, &rounded}) {
    EXPECT_EQ(outcome->losses, straight.losses);
    EXPECT_TRUE(outcome->weights == straight.weights);
  }
}

// Saved by eight ranks, resumed and saved by four, resumed and finished by one.
TEST(CheckpointOfManyRanks, MovesFromManyRanksToOne) {
  const RankLayout eight{.dp = 2, .zero = 3, .tp = 2, .pp = 2}, four{.pp = 4};
  for (const std::string& model : tiny_models()) {
    const TemporaryDirectory directory;
    const Training training = full_training(model);
    Outcome outcome;
    const fs::path first = saved(directory.path(), eight, training, 2, outcome);
    fs::path second;
    on_ranks(
        four, training,
        [&](const Member& member) {
          EXPECT_EQ(load_checkpoint(first, member.engine), trainer_state_at(2));
          train(member, 3, 4, outcome);
          const fs::path written = save(directory.path(), member, 4);
          if (member.world.rank() == 0) second = written;
        },
        false);
    resume(second, {}, training, 6, outcome);
    expect_same(outcome, trained({}, training, 6), model);
  }
}

struct Kept {
  const char* name;
  DType precision;
  OptimizerSettings optimizer;
};
class CheckpointBits : public testing::TestWithParam<Kept> {};

TEST_P(CheckpointBits, AreKeptWhereNothingChanges) {
  Training training = training_of("llama-gqa", GetParam().precision, 8);
  training.optimizer = GetParam().optimizer;
  training.length = 8;
  for (const RankLayout& layout :
       {RankLayout{1, 0}, RankLayout{4, 0}, RankLayout{4, 1}, RankLayout{2, 2}, RankLayout{4, 3, 2},
        RankLayout{.dp = 2, .zero = 3, .tp = 4, .sequence_parallel = true},
        RankLayout{.dp = 2, .zero = 1, .tp = 2, .cp = 2, .pp = 2},
        RankLayout{.pp = 3, .schedule = PipelineKind::ZeroBubbleH1}}) {
    SCOPED_TRACE(to_string(layout));
    const TemporaryDirectory one, other;
    const Outcome straight = trained(layout, training, 4);
    Outcome stopped, watched;
    const fs::path middle = saved(one.path(), layout, training, 2, stopped);
    resume(middle, layout, training, 4, stopped);
    EXPECT_EQ(stopped.losses, straight.losses);
    EXPECT_EQ(stopped.weights, straight.weights);
    // Saving does not change the run; moments and master are the same in both.
    std::map<std::string, std::string> end;
    on_ranks(layout, training, [&](const Member& member) {
      train(member, 1, 2, watched);
      save(other.path(), member, 2);
      train(member, 3, 4, watched);
      const fs::path last = save(other.path(), member, 4);
      if (member.world.rank() == 0) end = directory_contents(last);
    });
    EXPECT_EQ(watched.weights, straight.weights);
    on_ranks(
        layout, training,
        [&](const Member& member) {
          load_checkpoint(middle, member.engine);
          for (std::int64_t step = 3; step <= 4; ++step) member.step(step);
          const fs::path last = save(one.path(), member, 4);
          if (member.world.rank() == 0) {
            EXPECT_EQ(directory_contents(last), end);
          }
        },
        false);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Precisions, CheckpointBits,
    testing::Values(Kept{"fp64", DType::F64, {}}, Kept{"fp32", DType::F32, {}},
                    Kept{"bf16", DType::BF16, {}},
                    Kept{"bf16_moments",
                         DType::BF16,
                         {.moments = DType::BF16, .stochastic_rounding = true, .seed = 9}}),
    [](const auto& info) { return std::string(info.param.name); });

// Returns a checkpoint's files without checksums.json, which depends on the number of ranks.
std::map<std::string, std::string> files_of(const fs::path& model) {
  auto files = directory_contents(model);
  for (const auto& [name, content] : directory_contents(state_directory(model)))
    files["state/" + name] = content;
  std::erase_if(files, [](const auto& file) { return file.first.ends_with("checksums.json"); });
  return files;
}

// Initial weights are the same in every layout, so the files must be equal byte for byte.
TEST(CheckpointOfManyRanks, IsThatOfOneProcess) {
  const std::vector<RankLayout> layouts = {
      {3, 0},
      {5, 1},
      {4, 2},
      {16, 3},
      {12, 3, 4},
      {.tp = 2},
      {.zero = 2, .tp = 4, .cp = 2, .sequence_parallel = true},
      {.dp = 2, .zero = 3, .tp = 2, .pp = 2},
      {.dp = 2, .tp = 2, .pp = 3, .schedule = PipelineKind::GPipe},
      {.dp = 2,
       .zero = 1,
       .tp = 4,
       .pp = 2,
       .schedule = PipelineKind::ZeroBubbleH1,
       .split = {1, 2}}};
  for (const char* model : {"gpt2", "llama-gqa", "qwen3", "bloom"})
    for (const DType precision : {DType::F32, DType::BF16}) {
      const std::uint64_t max_bytes =
          precision == DType::F32 ? kSmallFiles : std::uint64_t{1} << 30;
      Training training = training_of(model, precision, 240);
      training.length = 8;
      const TemporaryDirectory directory;
      Outcome ignored;
      const auto expected =
          files_of(saved(directory / "alone", {}, training, 0, ignored, max_bytes));
      EXPECT_GT(expected.size(), max_bytes == kSmallFiles ? 8u : 4u);
      for (const RankLayout& layout : layouts) {
        const auto actual =
            files_of(saved(directory / to_string(layout), layout, training, 0, ignored, max_bytes));
        EXPECT_EQ(actual, expected) << model << ", " << to_string(layout);
      }
    }
}

// The ranges that the ranks wrote have no gap and no overlap.
void expect_written_once(const fs::path& directory) {
  std::ifstream file(directory / "checksums.json");
  const auto list = nlohmann::json::parse(file);
  EXPECT_FALSE(list.at("pieces").empty());
  for (const auto& [name, ranges] : list.at("pieces").items()) {
    std::uint64_t end = 0;
    for (const auto& range : ranges) {
      EXPECT_EQ(range.at(0), end) << name;
      end += range.at(1).get<std::uint64_t>();
    }
    EXPECT_EQ(end, fs::file_size(directory / name)) << name;
  }
}

TEST(CheckpointOfManyRanks, HoldsEveryTensorOnceAndWhole) {
  for (const auto& [model, layout] :
       {std::pair<const char*, RankLayout>{"bloom-untied", {12, 3, 4}},
        {"gpt2", {.dp = 2, .zero = 3, .tp = 2, .pp = 2}},      // a table that two stages share
        {"qwen3", {.dp = 2, .zero = 1, .tp = 4, .pp = 3}}}) {  // one key-value head on four ranks
    SCOPED_TRACE(model);
    Training training = training_of(model, DType::F64);
    training.length = 8;
    const TemporaryDirectory directory;
    Outcome ignored;
    const fs::path alone = saved(directory / "alone", {}, training, 4, ignored);
    const fs::path many = saved(directory / "many", layout, training, 4, ignored);
    std::size_t tensors = 0;
    for (const std::string stem : {"model", "optimizer"}) {
      const auto folder = [&](const fs::path& model) {
        return stem == "model" ? model : state_directory(model);
      };
      const SafetensorsModel a(folder(alone), stem), b(folder(many), stem);
      ASSERT_EQ(a.names(), b.names());
      for (const std::string& name : a.names()) {
        EXPECT_LE(difference(values(b.find(name)), values(a.find(name))), 1e-8) << name;
        EXPECT_EQ(b.find(name).entry->shape, a.find(name).entry->shape) << name;
        ++tensors;
      }
    }
    EXPECT_EQ(tensors, 3 * ParameterSet(training.model).parameters().size());
    expect_written_once(many);
    expect_written_once(state_directory(many));
  }
}

}  // namespace
}  // namespace kintsugi
