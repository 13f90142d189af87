// Checkpoints of many ranks: without a layout, to the bit, and never half there.
#include "train/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
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

TrainerState state_at(std::int64_t step) {
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
  return save_checkpoint(checkpoints, member.engine, state_at(step),
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

// Loads and trains on, up to and with `last`.
void resume(const fs::path& directory, const RankLayout& layout, const Training& training,
            std::int64_t last, Outcome& outcome) {
  on_ranks(
      layout, training,
      [&](const Member& member) {
        const TrainerState state = load_checkpoint(directory, member.engine);
        EXPECT_EQ(state, state_at(state.step));
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

// KINTSUGI_SEED=n repeats what a failure printed.
TEST(CheckpointOfManyRanks, GoesOnInAnyOtherLayout) {
  const char* given = std::getenv("KINTSUGI_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  fmt::print("KINTSUGI_SEED={}\n", seed);
  std::mt19937_64 random(seed);
  const auto draw = [&]() -> RankLayout {
    static constexpr std::array<int, 8> kRanks = {1, 2, 3, 4, 6, 8, 12, 16};
    const int ranks = kRanks[random() % kRanks.size()], zero = static_cast<int>(random() % 4);
    std::vector<int> groups = {0};
    for (int group = 2; zero > 0 && group < ranks; ++group)
      if (ranks % group == 0) groups.push_back(group);
    return {ranks, zero, groups[random() % groups.size()]};
  };
  std::map<std::string, Outcome> straight;
  for (int pair = 0; pair < 12; ++pair) {
    const TemporaryDirectory directory;
    const RankLayout from = draw(), to = draw();
    const std::string& model = tiny_models()[random() % tiny_models().size()];
    const std::string what = fmt::format("KINTSUGI_SEED={}: {}, then {}, {}", seed, to_string(from),
                                         to_string(to), model);
    SCOPED_TRACE(what);
    const Training training = training_of(model, DType::F64);
    if (!straight.contains(model)) straight[model] = trained({}, training, 8);
    Outcome outcome;
    const fs::path step = saved(directory.path(), from, training, 4, outcome);
    resume(step, to, training, 8, outcome);
    expect_same(outcome, straight[model], DType::F64, what);
  }
}

struct Kept {
  const char* name;
  DType precision;
  AdamWSettings adamw;
};
class CheckpointBits : public testing::TestWithParam<Kept> {};

TEST_P(CheckpointBits, AreKeptWhereNothingChanges) {
  Training training = training_of("llama-gqa", GetParam().precision, 16);
  training.adamw = GetParam().adamw;
  for (const RankLayout& layout : {RankLayout{1, 0}, RankLayout{4, 0}, RankLayout{4, 1},
                                   RankLayout{2, 2}, RankLayout{16, 3}, RankLayout{8, 3, 4}}) {
    SCOPED_TRACE(to_string(layout));
    const TemporaryDirectory one, other;
    const Outcome straight = trained(layout, training, 8);
    Outcome stopped, watched;
    const fs::path middle = saved(one.path(), layout, training, 4, stopped);
    resume(middle, layout, training, 8, stopped);
    EXPECT_EQ(stopped.losses, straight.losses);
    EXPECT_EQ(stopped.weights, straight.weights);
    // Whoever only saves goes on as before; moments and master are the same in both.
    std::map<std::string, std::string> end;
    on_ranks(layout, training, [&](const Member& member) {
      train(member, 1, 4, watched);
      save(other.path(), member, 4);
      train(member, 5, 8, watched);
      const fs::path last = save(other.path(), member, 8);
      if (member.world.rank() == 0) end = directory_contents(last);
    });
    EXPECT_EQ(watched.weights, straight.weights);
    on_ranks(
        layout, training,
        [&](const Member& member) {
          load_checkpoint(middle, member.engine);
          for (std::int64_t step = 5; step <= 8; ++step) member.step(step);
          const fs::path last = save(one.path(), member, 8);
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

// Fresh weights are the same in every layout, so their files are, too, byte for byte.
TEST(CheckpointOfManyRanks, IsThatOfOneProcess) {
  for (const std::uint64_t max_bytes : {kSmallFiles, std::uint64_t{1} << 30})
    for (const DType precision : {DType::F32, DType::BF16}) {
      const Training training = training_of("gpt2", precision);
      const TemporaryDirectory directory;
      Outcome ignored;
      auto expected =
          directory_contents(saved(directory / "alone", {}, training, 0, ignored, max_bytes));
      expected.erase("checksums.json");  // which says what was written as one
      EXPECT_GT(expected.size(), max_bytes == kSmallFiles ? 8u : 5u);
      for (const RankLayout& layout : {RankLayout{3, 0}, RankLayout{5, 1}, RankLayout{4, 2},
                                       RankLayout{16, 3}, RankLayout{12, 3, 4}}) {
        auto actual = directory_contents(
            saved(directory / to_string(layout), layout, training, 0, ignored, max_bytes));
        actual.erase("checksums.json");
        EXPECT_EQ(actual, expected) << to_string(layout);
      }
    }
}

TEST(CheckpointOfManyRanks, HoldsEveryTensorOnceAndWhole) {
  const Training training = training_of("bloom-untied", DType::F64);
  const TemporaryDirectory directory;
  Outcome ignored;
  const fs::path alone = saved(directory / "alone", {}, training, 4, ignored);
  const fs::path many = saved(directory / "many", {12, 3, 4}, training, 4, ignored);
  std::size_t tensors = 0;
  for (const auto& [folder, stem] :
       {std::pair<std::string, std::string>{"", "model"}, {"optimizer", "optimizer"}}) {
    const SafetensorsModel a(alone / folder, stem), b(many / folder, stem);
    ASSERT_EQ(a.names(), b.names());
    for (const std::string& name : a.names()) {
      EXPECT_LE(difference(values(b.find(name)), values(a.find(name))), 1e-8) << name;
      EXPECT_EQ(b.find(name).entry->shape, a.find(name).entry->shape) << name;
      ++tensors;
    }
  }
  EXPECT_EQ(tensors, 3 * ParameterSet(training.model).parameters().size());
}

}  // namespace
}  // namespace kintsugi
