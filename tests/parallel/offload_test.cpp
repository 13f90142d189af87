// A run with optimizer state or activations in host memory is bit-identical to the run without
// offload.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/directory_contents.h"
#include "support/late_backend.h"
#include "support/parallel_run.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Backend> make_late_backend(int threads) {
  return std::make_unique<LateBackend>(threads);
}

// Far smaller than a bucket, and not a divisor of its size.
constexpr std::int64_t kBlockElements = 208;

const std::vector<RankLayout>& offload_layouts() {
  static const std::vector<RankLayout> all = {
      {},
      {.dp = 2},
      {.dp = 3, .zero = 1},
      {.dp = 4, .zero = 2},
      {.dp = 4, .zero = 3},
      {.dp = 4, .zero = 3, .shard_group = 2},
      {.dp = 2, .zero = 1, .tp = 2, .sequence_parallel = true},
      {.dp = 2, .zero = 2, .pp = 2},
      {.tp = 2, .pp = 2, .schedule = PipelineKind::ZeroBubbleH1},
  };
  return all;
}

Training small(DType precision) {
  Training training{.model = tiny_model("llama-gqa", 4),
                    .precision = precision,
                    .sequences = 12,
                    .micro = 1,
                    .length = 8,
                    .dropout = 0.1,
                    .masked = true};
  training.backend = make_late_backend;
  return training;
}

// Losses, norms, weights, and every file of the final checkpoint.
struct Finished {
  Outcome outcome;
  std::map<std::string, std::string> files;
};

Finished run(const RankLayout& layout, const Training& training, std::int64_t steps) {
  const TemporaryDirectory directory;
  Finished result;
  on_ranks(layout, training, [&](const Member& member) {
    train(member, 1, steps, result.outcome);
    TrainerState state;
    state.step = steps;
    const fs::path saved = save_checkpoint(directory.path(), member.engine, state, {.keep = 0});
    member.groups[GroupKind::World].barrier();
    if (member.world.rank() == 0) result.files = directory_contents(saved);
    member.groups[GroupKind::World].barrier();
  });
  return result;
}

void expect_equal_runs(const Finished& actual, const Finished& expected) {
  EXPECT_EQ(actual.outcome.losses, expected.outcome.losses);
  EXPECT_EQ(actual.outcome.norms, expected.outcome.norms);
  // Padding is not NaN, so that EXPECT_EQ works.
  EXPECT_EQ(actual.outcome.weights, expected.outcome.weights);
  EXPECT_TRUE(actual.files == expected.files);
  EXPECT_GT(expected.files.size(), 3u);
}

struct StateCase {
  const char* name;
  DType precision;
  OptimizerSettings optimizer = {};
  bool everywhere = false;  // test all layouts, not only a few
};
void PrintTo(const StateCase& state, std::ostream* out) { *out << state.name; }

const StateCase kStates[] = {
    {"fp32", DType::F32, {}, true},
    {"fp64", DType::F64},
    {"bf16", DType::BF16},
    {"bf16_moments", DType::BF16, {.moments = DType::BF16}},
    {"by_chance",
     DType::BF16,
     {.moments = DType::BF16, .stochastic_rounding = true, .seed = 5},
     true},
    {"fp32_by_chance",
     DType::F32,
     {.moments = DType::BF16, .stochastic_rounding = true, .seed = 6}},
};

class OffloadedState : public testing::TestWithParam<StateCase> {};

TEST_P(OffloadedState, ChangesNoBitInAnyLayout) {
  for (std::size_t i = 0; i < offload_layouts().size(); i += GetParam().everywhere ? 1 : 4) {
    const RankLayout& layout = offload_layouts()[i];
    Training training = small(GetParam().precision);
    training.optimizer = GetParam().optimizer;
    const Finished expected = run(layout, training, 5);
    // In the CPU backend, device and host updates are the same function.
    for (const UpdateLocation location :
         {UpdateLocation::Device, UpdateLocation::Host, UpdateLocation::Auto}) {
      SCOPED_TRACE(fmt::format("{}, update {}", to_string(layout), to_string(location)));
      training.offload = {.on = true, .update = location, .block_elements = kBlockElements};
      expect_equal_runs(run(layout, training, 5), expected);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, OffloadedState, testing::ValuesIn(kStates),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OffloadedStateBlocks, OfAnySizeDoTheSame) {
  Training training = small(DType::BF16);
  training.optimizer = {.moments = DType::BF16, .stochastic_rounding = true};
  const RankLayout layout{.dp = 2, .zero = 1};
  const Finished expected = run(layout, training, 3);
  for (const UpdateLocation location : {UpdateLocation::Device, UpdateLocation::Host})
    for (const std::int64_t elements : {16, 1000, 2400, 5000, 1 << 22}) {
      SCOPED_TRACE(fmt::format("{} in blocks of {}", to_string(location), elements));
      training.offload = {.on = true, .update = location, .block_elements = elements};
      expect_equal_runs(run(layout, training, 3), expected);
    }
}

TEST(OffloadedOptimizer, ResumesFromACheckpointInEitherLocation) {
  const RankLayout layout{.dp = 2, .zero = 2};
  Training plain = small(DType::BF16), offloaded = plain;
  offloaded.offload = {
      .on = true, .update = UpdateLocation::Device, .block_elements = kBlockElements};
  const Finished expected = run(layout, plain, 6);
  for (const auto& [first, second] : {std::pair(offloaded, offloaded), std::pair(plain, offloaded),
                                      std::pair(offloaded, plain)}) {
    const TemporaryDirectory directory;
    Outcome outcome;
    fs::path saved;
    on_ranks(layout, first, [&](const Member& member) {
      train(member, 1, 3, outcome);
      TrainerState state;
      state.step = 3;
      const fs::path written = save_checkpoint(directory.path(), member.engine, state, {});
      if (member.world.rank() == 0) saved = written;
    });
    on_ranks(
        layout, second,
        [&](const Member& member) {
          load_checkpoint(saved, member.engine);
          train(member, 4, 6, outcome);
        },
        false);
    EXPECT_EQ(outcome.losses, expected.outcome.losses);
    EXPECT_EQ(outcome.weights, expected.outcome.weights);
  }
}

// fp16: gradients of this scale overflow, so nothing may change in either location.
TEST(OffloadedOptimizer, IsLeftAloneByAnOverflow) {
  for (const UpdateLocation location :
       {UpdateLocation::Device, UpdateLocation::Host, UpdateLocation::Auto})
    for (const DType precision : {DType::F16, DType::F32}) {
      Training training = small(precision);
      training.offload = {.on = true, .update = location, .block_elements = kBlockElements};
      on_ranks({}, training, [&](const Member& member) {
        const auto weights = [&] {
          member.engine.sharding().finish_weights();
          const Tensor x = member.engine.sharding().weights();
          std::vector<std::byte> bytes(x.bytes());
          member.engine.backend().download(bytes.data(), x);
          const OptimizerState& all = member.engine.optimizer().state();
          EXPECT_EQ(all.segments().size(), 6u);
          for (const StateRange& run : all.segments())
            for (const Tensor& state : {all.master(run), all.slot(run, 0), all.slot(run, 1)}) {
              bytes.resize(bytes.size() + state.bytes());
              member.engine.backend().download(bytes.data() + bytes.size() - state.bytes(), state);
            }
          return bytes;
        };
        member.step(1, 8.0);
        const auto before = weights();
        EXPECT_FALSE(std::isfinite(member.step(2, 1e38).gradient_norm));
        EXPECT_TRUE(weights() == before);
        EXPECT_TRUE(std::isfinite(member.step(3, 8.0).gradient_norm));
        EXPECT_FALSE(weights() == before);
      });
    }
}

TEST(OffloadedOptimizer, ChoosesALocationInTheFirstSteps) {
  Training training = small(DType::BF16);
  training.offload = {.on = true, .update = UpdateLocation::Auto, .block_elements = kBlockElements};
  std::vector<UpdateLocation> chosen(2, UpdateLocation::Auto);
  on_ranks({.dp = 2}, training, [&](const Member& member) {
    for (std::int64_t step = 1; step <= 3; ++step) {
      member.step(step);
      EXPECT_EQ(member.engine.optimizer().update_location(), UpdateLocation::Auto);
    }
    member.step(4);
    chosen[static_cast<std::size_t>(member.world.rank())] =
        member.engine.optimizer().update_location();
  });
  EXPECT_NE(chosen[0], UpdateLocation::Auto);
  EXPECT_EQ(chosen[0], chosen[1]);
}

// A backend without a host side.
class BackendWithoutHost : public LateBackend {
 public:
  using LateBackend::LateBackend;
  Backend* host() override { return nullptr; }
};

TEST(OffloadedOptimizer, StaysOnTheDeviceWithoutAHostBackend) {
  Training training = small(DType::BF16);
  const Finished expected = run({}, training, 2);
  training.backend = [](int threads) -> std::unique_ptr<Backend> {
    return std::make_unique<BackendWithoutHost>(threads);
  };
  training.offload = {.on = true, .update = UpdateLocation::Auto, .block_elements = kBlockElements};
  expect_equal_runs(run({}, training, 2), expected);
  training.offload.update = UpdateLocation::Host;
  EXPECT_THROW(run({}, training, 2), std::exception);
}

// Planned bytes of one rank, on the device and on the host.
std::pair<std::size_t, std::size_t> planned_bytes(const Training& training) {
  const auto backend = make_late_backend(1);
  PlanningAllocator nothing;
  const Engine engine(*backend, nothing, training.engine({}));
  return {engine.arena().total_bytes(), engine.arena().total_bytes(Side::Host)};
}

TEST(OffloadedMemory, IsPlannedOnItsSide) {
  Training training = small(DType::BF16);
  const auto [device, none] = planned_bytes(training);
  const auto n = static_cast<std::size_t>(ParameterSet(training.model).buffer_elements());
  EXPECT_EQ(none, 0u);
  training.offload = {
      .on = true, .update = UpdateLocation::Device, .block_elements = kBlockElements};
  const auto [streamed, state] = planned_bytes(training);
  EXPECT_EQ(state, 12 * n) << "master and two moments";
  const Bucket layer = ParameterSet(training.model).buckets()[1];
  ASSERT_EQ(layer.role, Bucket::Role::Block);
  const auto blocks =
      static_cast<std::size_t>((layer.end - layer.begin + kBlockElements - 1) / kBlockElements);
  EXPECT_EQ(streamed, device - 12 * n + (blocks + 2) * 12 * kBlockElements)
      << "the blocks of a layer instead, and two being copied back";
  training.offload.update = UpdateLocation::Host;
  const auto [rest, with_staging] = planned_bytes(training);
  EXPECT_EQ(rest, device - 12 * n);
  EXPECT_EQ(with_staging, 12 * n + 4 * 6 * kBlockElements + 4) << "four blocks and a scalar";
}

// ---- gradients

std::vector<RankLayout> without_halves() {
  std::vector<RankLayout> some = offload_layouts();
  std::erase_if(
      some, [](const RankLayout& layout) { return layout.schedule == PipelineKind::ZeroBubbleH1; });
  some.push_back({.dp = 4, .zero = 2, .shard_group = 2});
  some.push_back({.dp = 2, .zero = 1, .tp = 4});
  some.push_back({.pp = 2, .chunks = 2, .schedule = PipelineKind::Interleaved});
  return some;
}

// Only the norm is summed in another order, and without clipping it has no effect.
Training without_clipping(DType precision, const char* family) {
  Training training = small(precision);
  training.model = tiny_model(family, 4);
  training.optimizer.clip = 0;
  return training;
}

void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                  double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance * std::abs(expected[i])) << "step " << i + 1;
}

class OffloadedGradients : public testing::TestWithParam<const char*> {};

TEST_P(OffloadedGradients, AreTheSameInAnyLayout) {
  for (const RankLayout& layout : without_halves()) {
    Training training = without_clipping(DType::F64, GetParam());
    // Skips tp that does not divide the heads.
    if (training.model.heads % layout.tp != 0) continue;
    const Finished expected = run(layout, training, 3);
    for (const auto& [state, location] :
         {std::pair(false, UpdateLocation::Auto), std::pair(true, UpdateLocation::Device),
          std::pair(true, UpdateLocation::Host)}) {
      SCOPED_TRACE(fmt::format("{}, state {}, update {}", to_string(layout),
                               state ? "host" : "device", to_string(location)));
      training.offload = {
          .on = state, .gradients = true, .update = location, .block_elements = kBlockElements};
      const Finished actual = run(layout, training, 3);
      expect_close(actual.outcome.losses, expected.outcome.losses, 1e-14);
      expect_close(actual.outcome.norms, expected.outcome.norms, 1e-12);
      // Sharded gradients accumulate micro-batches in the same order.
      if (layout.zero >= 2) {
        EXPECT_EQ(actual.outcome.weights, expected.outcome.weights);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, OffloadedGradients,
                         testing::Values("llama-gqa", "llama-tied", "gpt2"), [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// With clipping, in bf16 runs with bf16 reductions.
TEST(OffloadedGradientSums, AreClippedAlike) {
  for (const RankLayout& layout :
       {RankLayout{}, RankLayout{.dp = 2}, RankLayout{.dp = 2, .zero = 2},
        RankLayout{.dp = 4, .zero = 3, .shard_group = 2}})
    for (const bool narrow : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, {} sums", to_string(layout), narrow ? "bf16" : "fp32"));
      Training training = small(DType::BF16);
      training.optimizer.clip = 0.1;
      training.reduce_in_bf16 = narrow;
      const Finished expected = run(layout, training, 4);
      training.offload = {.on = true,
                          .gradients = true,
                          .update = UpdateLocation::Device,
                          .block_elements = kBlockElements};
      const Finished actual = run(layout, training, 4);
      expect_close(actual.outcome.norms, expected.outcome.norms, 1e-3);
      expect_close(actual.outcome.losses, expected.outcome.losses, 1e-4);
      EXPECT_GT(expected.outcome.norms.front(), 0.2) << "nothing to clip";
    }
}

TEST(OffloadedGradientSums, OverflowIsSeen) {
  for (const UpdateLocation location : {UpdateLocation::Device, UpdateLocation::Host}) {
    Training training = small(DType::F16);
    training.offload = {
        .on = true, .gradients = true, .update = location, .block_elements = kBlockElements};
    on_ranks({.dp = 2}, training, [&](const Member& member) {
      EXPECT_TRUE(std::isfinite(member.step(1, 8.0).gradient_norm));
      EXPECT_FALSE(std::isfinite(member.step(2, 1e38).gradient_norm));
      EXPECT_TRUE(std::isfinite(member.step(3, 8.0).gradient_norm));
    });
  }
}

TEST(OffloadedGradientMemory, IsPlannedOnItsSide) {
  Training training = small(DType::BF16);
  training.model = tiny_model("llama-gqa", 8);
  training.offload = {.on = true, .update = UpdateLocation::Host, .block_elements = kBlockElements};
  const auto [device, host] = planned_bytes(training);
  training.offload.gradients = true;
  const auto [less, more] = planned_bytes(training);
  const ParameterSet set(training.model);
  const auto n = static_cast<std::size_t>(set.buffer_elements());
  EXPECT_EQ(more, host + 4 * n - 4 * 4 * kBlockElements) << "no staging of gradients";
  // On the device: two slots for layers, one for embedding or head, and two fetches in flight.
  std::size_t largest_end = 0, block = 0, largest = 0;
  for (const Bucket& bucket : set.buckets()) {
    const auto elements = static_cast<std::size_t>(bucket.end - bucket.begin);
    (bucket.role == Bucket::Role::Block ? block : largest_end) =
        std::max(bucket.role == Bucket::Role::Block ? block : largest_end, elements);
    largest = std::max(largest, elements);
  }
  EXPECT_EQ(less, device - 4 * n + 4 * (2 * block + largest_end + 2 * largest) + 4);
}

// ---- activations

Training recomputing(DType precision) {
  Training training = small(precision);
  training.model = tiny_model("gpt2", 7);
  training.recompute = Recompute::Full;
  training.micro = 2;
  return training;
}

TEST(OffloadedInputs, ChangeNoBitInAnyLayout) {
  for (const RankLayout& layout :
       {RankLayout{}, RankLayout{.dp = 2, .zero = 3}, RankLayout{.dp = 3},
        RankLayout{.tp = 2, .sequence_parallel = true}, RankLayout{.pp = 2},
        RankLayout{.pp = 2, .schedule = PipelineKind::ZeroBubbleH1}, RankLayout{.cp = 2}})
    for (const int every : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, every {}", to_string(layout), every));
      Training training = recomputing(DType::BF16);
      training.model = tiny_model(layout.cp > 1 ? "llama-tied" : "gpt2", 7);
      training.recompute_every = every;
      const Finished expected = run(layout, training, 3);
      training.offload_inputs = true;
      expect_equal_runs(run(layout, training, 3), expected);
    }
}

TEST(OffloadedInputs, LeaveTheLossesOfAnEvaluationAlone) {
  Training training = recomputing(DType::F32);
  const auto losses = [&] {
    std::vector<double> all;
    on_ranks({}, training, [&](const Member& member) {
      for (std::int64_t step = 1; step <= 2; ++step) {
        all.push_back(member.evaluate(9));
        all.push_back(member.step(step).loss);
        all.push_back(member.evaluate(9));
      }
    });
    return all;
  };
  const auto expected = losses();
  training.offload_inputs = true;
  EXPECT_EQ(losses(), expected);
}

TEST(OffloadedInputs, AreNotCopiedByAnEvaluation) {
  Training training = recomputing(DType::F32);
  training.offload_inputs = true;
  on_ranks({}, training, [&](const Member& member) {
    const auto& backend = dynamic_cast<const LateBackend&>(member.engine.backend());
    const std::int64_t before = backend.transfers();
    member.evaluate(9);
    EXPECT_EQ(backend.transfers(), before) << "no backward would fetch them";
    member.step(1);
    EXPECT_GT(backend.transfers(), before);
  });
}

TEST(OffloadedInputs, TakeHostMemoryInsteadOfTheDevices) {
  Training training = recomputing(DType::BF16);
  const auto [device, none] = planned_bytes(training);
  training.offload_inputs = true;
  const auto [rest, host] = planned_bytes(training);
  const std::size_t input = 2 * 2 * 8 * 16;  // bytes, sequences, length, width
  EXPECT_EQ(none, 0u);
  EXPECT_EQ(host, 5 * input) << "of seven blocks, all but the first and the last";
  EXPECT_EQ(rest, device - 5 * input + 3 * input);
}

}  // namespace
}  // namespace kintsugi
