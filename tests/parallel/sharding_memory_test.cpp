// A rank's planned memory with each ZeRO stage, for models and rank counts too large to run in a
// test.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "train/engine.h"

namespace kintsugi {
namespace {

struct ShardingPlan {
  std::string model;
  int ranks, zero, shard;  // shard: ranks per shard group
  DType precision = DType::BF16;
  bool reduce_in_bf16 = false;
  DType moments = DType::F32;
};

std::array<double, kRegions> plan(const ShardingPlan& spec, int rank) {
  const auto backend = make_cpu_backend(1);
  PlanningAllocator memory;
  const ModelConfig model = load_preset(spec.model);
  Layout layout{.dp = spec.ranks, .zero = spec.zero};
  if (spec.zero > 0) layout.shard_group = spec.shard;
  const Groups groups = planned_groups(grid_of(layout, model), {.dp = rank});
  const Engine engine(*backend, memory,
                      {.model = model,
                       .precision = spec.precision,
                       .layout = layout,
                       .length = 1024,
                       .optimizer = {.moments = spec.moments},
                       .reduce_in_bf16 = spec.reduce_in_bf16},
                      groups);
  std::array<double, kRegions> bytes;
  for (int region = 0; region < kRegions; ++region)
    bytes[static_cast<std::size_t>(region)] =
        static_cast<double>(engine.arena().bytes(static_cast<Region>(region)));
  return bytes;
}

// Computed only from the sizes of the model's tensors.
std::array<double, kRegions> formula(const ShardingPlan& spec) {
  const ModelConfig model = load_preset(spec.model);
  std::vector<double> buckets(static_cast<std::size_t>(model.layers) + 2);
  const ParameterSet set(model);
  for (const Parameter& parameter : set.parameters())
    buckets[static_cast<std::size_t>(parameter.bucket)] +=
        static_cast<double>(parameter.shape.elements());
  const double n = static_cast<double>(set.elements()), s = spec.shard;
  const double weight = static_cast<double>(size_of(spec.precision));
  const bool sixteen = spec.precision == DType::BF16;
  const double state = (sixteen ? 4.0 : 0.0) + 2.0 * static_cast<double>(size_of(spec.moments));
  // Slots: two layers, and embedding and head: both if they are tied, otherwise the larger one.
  const double ends =
      model.tied ? buckets.front() + buckets.back() : std::max(buckets.front(), buckets.back());
  const double slots = 2 * buckets[1] + ends;
  const double largest = *std::max_element(buckets.begin(), buckets.end());
  double communication = (spec.zero == 3 ? slots * weight : 0) + (spec.zero >= 2 ? slots * 4 : 0);
  if (spec.reduce_in_bf16) communication += 2 * 2 * largest + 4 * largest / s;
  std::array<double, kRegions> bytes = {};
  bytes[static_cast<std::size_t>(Region::Weights)] = n * weight / (spec.zero == 3 ? s : 1);
  bytes[static_cast<std::size_t>(Region::Gradients)] = n * 4 / (spec.zero >= 2 ? s : 1);
  bytes[static_cast<std::size_t>(Region::Optimizer)] = n * state / (spec.zero >= 1 ? s : 1);
  bytes[static_cast<std::size_t>(Region::Communication)] = communication;
  return bytes;
}

void expect_sharding_plan(const ShardingPlan& spec) {
  const auto expected = formula(spec);
  const auto alone = plan({spec.model, 1, 0, 1, spec.precision}, 0);
  for (const int rank : {0, spec.ranks - 1}) {
    const auto actual = plan(spec, rank);
    for (int region = 0; region < kRegions; ++region) {
      const auto at = static_cast<std::size_t>(region);
      const Region which = static_cast<Region>(region);
      const bool unsharded = which == Region::Activations || which == Region::Workspace;
      const double should = unsharded ? alone[at] : expected[at];
      EXPECT_NEAR(actual[at], should, 0.02 * should)
          << to_string(which) << " of rank " << rank << ": " << spec.model << ", " << spec.ranks
          << " ranks, ZeRO " << spec.zero << " in groups of " << spec.shard;
    }
  }
}

class ShardingMemory : public testing::TestWithParam<const char*> {};

TEST_P(ShardingMemory, FallsAsTheFormulasSay) {
  for (const int ranks : {8, 64}) {
    expect_sharding_plan({GetParam(), ranks, 0, 1});
    for (const int zero : {1, 2, 3})
      for (const int shard : {ranks, 4}) expect_sharding_plan({GetParam(), ranks, zero, shard});
  }
}

TEST_P(ShardingMemory, InOtherPrecisions) {
  for (const int zero : {0, 1, 2, 3}) {
    const int shard = zero == 0 ? 1 : 16;
    expect_sharding_plan({GetParam(), 16, zero, shard, DType::F32});
    expect_sharding_plan({GetParam(), 16, zero, shard, DType::BF16, true});
    expect_sharding_plan({GetParam(), 16, zero, shard, DType::BF16, false, DType::BF16});
  }
}
INSTANTIATE_TEST_SUITE_P(Models, ShardingMemory,
                         testing::Values("gpt2-124m", "llama-1b", "llama-8b", "bloom-560m"));

}  // namespace
}  // namespace kintsugi
