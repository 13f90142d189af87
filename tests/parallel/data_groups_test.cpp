// Parameters whose data groups differ from those of the others (as for experts of an MoE).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/late_backend.h"
#include "support/parallel_run.h"
#include "support/thread_world.h"

namespace kintsugi {
namespace {

// Shard and replica group exchanged.
constexpr DataGroups kOther{GroupKind::Replica, GroupKind::Shard};

using Chosen = std::function<bool(const Parameter&)>;

Outcome trained_with_groups(const RankLayout& layout, const Training& training,
                            const Chosen& special, std::int64_t steps) {
  Outcome outcome;
  run_ranks(layout.ranks(), [&](World& world) {
    const Groups groups = make_groups(world, grid_of(training.layout(layout), training.model));
    const auto backend = training.backend(1);
    Engine engine(*backend, *backend, training.engine(layout), groups,
                  [&](const Parameter& p) { return special(p) ? kOther : DataGroups{}; });
    engine.initialize(11);
    const auto& all = engine.parameters().parameters();
    EXPECT_EQ(engine.sharding().data_groups().size(),
              std::any_of(all.begin(), all.end(), special) ? 2u : 1u);
    train({world, groups, engine, layout, training}, 1, steps, outcome);
  });
  return outcome;
}

Training training_of(const std::string& model) {
  return {.model = tiny_model(model, 3),
          .sequences = 16,
          .micro = 2,
          .masked = true,
          .optimizer = {.clip = 0.1}};  // so that the gradient norm matters
}

bool is_one(const Parameter& p) { return p.name == "model.layers.1.mlp.down_proj.weight"; }
bool is_mlp(const Parameter& p) { return p.group == ParameterGroup::Mlp; }
bool is_table(const Parameter& p) { return p.group == ParameterGroup::Embedding && p.decay; }

// Shard groups of 1, 2 and 4 ranks; those of the special parameters have 4, 2 and 1.
const std::vector<RankLayout>& layouts() {
  static const std::vector<RankLayout> all = {{4, 1, 1}, {4, 1, 2}, {4, 1, 4}, {4, 2, 1}, {4, 2, 2},
                                              {4, 2, 4}, {4, 3, 1}, {4, 3, 2}, {4, 3, 4}};
  return all;
}

TEST(DataGroups, EachShardsItsOwn) {
  const Training training = training_of("llama-gqa");
  const Outcome expected = trained({}, training, 4);
  for (const RankLayout& layout : layouts())
    for (const Chosen& special : {Chosen(is_one), Chosen(is_mlp), Chosen(is_table)})
      expect_same(trained_with_groups(layout, training, special, 4), expected, to_string(layout));
}

// Some stages have special parameters, others have none.
TEST(DataGroups, WithTensorRanksAndStages) {
  const Training training = training_of("llama-gqa");
  const Outcome expected = trained({}, training, 4);
  for (const int zero : {1, 2, 3})
    for (const RankLayout& layout : {RankLayout{.dp = 4, .zero = zero, .shard_group = 2, .tp = 2},
                                     RankLayout{.dp = 4, .zero = zero, .shard_group = 2, .pp = 2}})
      for (const Chosen& special : {Chosen(is_one), Chosen(is_mlp)})
        expect_same(trained_with_groups(layout, training, special, 4), expected, to_string(layout));
}

TEST(DataGroups, OfPartsOfAnEmbedding) {
  const Training training = training_of("gpt2");
  const Outcome expected = trained({}, training, 4);
  const auto positions = [](const Parameter& p) { return p.name == "transformer.wpe.weight"; };
  for (const RankLayout& layout : layouts())
    expect_same(trained_with_groups(layout, training, positions, 4), expected, to_string(layout));
}

// Squares are added when gradients are copied to host memory, separately for each data group.
TEST(DataGroups, WithGradientsOnTheHost) {
  Training training = training_of("llama-gqa");
  const Outcome expected = trained({}, training, 4);
  training.offload = {
      .on = true, .gradients = true, .update = UpdateLocation::Device, .block_elements = 208};
  training.backend = [](int threads) -> std::unique_ptr<Backend> {
    return std::make_unique<LateBackend>(threads);
  };
  for (const RankLayout& layout : layouts())
    expect_same(trained_with_groups(layout, training, is_mlp, 4), expected, to_string(layout));
}

}  // namespace
}  // namespace kintsugi
