// What each stage of ZeRO takes of a rank's memory, for models and ranks that no test could hold.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "train/engine.h"

namespace kintsugi {
namespace {

struct Plan {
  std::string model;
  int ranks, zero, shard;  // shard: ranks of a group
  DType precision = DType::BF16;
  bool reduce_in_bf16 = false;
  DType moments = DType::F32;
};

std::array<double, kRegions> plan(const Plan& wanted, int rank) {
  const auto backend = make_cpu_backend(1);
  PlanningAllocator memory;
  const ModelConfig model = load_preset(wanted.model);
  Layout layout{.dp = wanted.ranks, .zero = wanted.zero};
  if (wanted.zero > 0) layout.shard_group = wanted.shard;
  const Groups groups = planned_groups(grid_of(layout, model), {.dp = rank});
  const Engine engine(*backend, memory,
                      {.model = model,
                       .precision = wanted.precision,
                       .layout = layout,
                       .length = 1024,
                       .optimizer = {.moments = wanted.moments},
                       .reduce_in_bf16 = wanted.reduce_in_bf16},
                      groups);
  std::array<double, kRegions> bytes;
  for (int region = 0; region < kRegions; ++region)
    bytes[static_cast<std::size_t>(region)] =
        static_cast<double>(engine.arena().bytes(static_cast<Region>(region)));
  return bytes;
}

// From the true sizes of the model's tensors alone.
std::array<double, kRegions> formula(const Plan& wanted) {
  const ModelConfig model = load_preset(wanted.model);
  std::vector<double> buckets(static_cast<std::size_t>(model.layers) + 2);
  const ParameterSet set(model);
  for (const Parameter& parameter : set.parameters())
    buckets[static_cast<std::size_t>(parameter.bucket)] +=
        static_cast<double>(parameter.shape.elements());
  const double n = static_cast<double>(set.elements()), s = wanted.shard;
  const double weight = static_cast<double>(size_of(wanted.precision));
  const bool sixteen = wanted.precision == DType::BF16;
  const double state = (sixteen ? 4.0 : 0.0) + 2.0 * static_cast<double>(size_of(wanted.moments));
  // Two layers, and embedding and head: both when they are tied, the larger one when not.
  const double ends =
      model.tied ? buckets.front() + buckets.back() : std::max(buckets.front(), buckets.back());
  const double slots = 2 * buckets[1] + ends;
  const double largest = *std::max_element(buckets.begin(), buckets.end());
  double communication =
      (wanted.zero == 3 ? slots * weight : 0) + (wanted.zero >= 2 ? slots * 4 : 0);
  if (wanted.reduce_in_bf16) communication += 2 * 2 * largest + 4 * largest / s;
  std::array<double, kRegions> bytes = {};
  bytes[static_cast<std::size_t>(Region::Weights)] = n * weight / (wanted.zero == 3 ? s : 1);
  bytes[static_cast<std::size_t>(Region::Gradients)] = n * 4 / (wanted.zero >= 2 ? s : 1);
  bytes[static_cast<std::size_t>(Region::Optimizer)] = n * state / (wanted.zero >= 1 ? s : 1);
  bytes[static_cast<std::size_t>(Region::Communication)] = communication;
  return bytes;
}

void expect_plan(const Plan& wanted) {
  const auto expected = formula(wanted);
  const auto alone = plan({wanted.model, 1, 0, 1, wanted.precision}, 0);
  for (const int rank : {0, wanted.ranks - 1}) {
    const auto actual = plan(wanted, rank);
    for (int region = 0; region < kRegions; ++region) {
      const auto at = static_cast<std::size_t>(region);
      const Region which = static_cast<Region>(region);
      const bool passes = which == Region::Activations || which == Region::Workspace;
      const double should = passes ? alone[at] : expected[at];
      EXPECT_NEAR(actual[at], should, 0.02 * should)
          << to_string(which) << " of rank " << rank << ": " << wanted.model << ", " << wanted.ranks
          << " ranks, ZeRO " << wanted.zero << " in groups of " << wanted.shard;
    }
  }
}

class ShardingMemory : public testing::TestWithParam<const char*> {};

TEST_P(ShardingMemory, FallsAsTheFormulasSay) {
  for (const int ranks : {8, 64}) {
    expect_plan({GetParam(), ranks, 0, 1});
    for (const int zero : {1, 2, 3})
      for (const int shard : {ranks, 4}) expect_plan({GetParam(), ranks, zero, shard});
  }
}

TEST_P(ShardingMemory, InOtherPrecisions) {
  for (const int zero : {0, 1, 2, 3}) {
    const int shard = zero == 0 ? 1 : 16;
    expect_plan({GetParam(), 16, zero, shard, DType::F32});
    expect_plan({GetParam(), 16, zero, shard, DType::BF16, true});
    expect_plan({GetParam(), 16, zero, shard, DType::BF16, false, DType::BF16});
  }
}
INSTANTIATE_TEST_SUITE_P(Models, ShardingMemory,
                         testing::Values("gpt2-124m", "llama-1b", "llama-8b", "bloom-560m"));

}  // namespace
}  // namespace kintsugi
