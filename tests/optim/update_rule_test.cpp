// A second rule besides AdamW, known only to this file: SGD with momentum on the MLPs.
#include "optim/update_rule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/directory_contents.h"
#include "support/late_backend.h"
#include "support/parallel_run.h"
#include "support/temporary_directory.h"
#include "tensor/safetensors.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// SGD with momentum has one slot. The test backends compute in host memory.
class Sgd : public ElementRule {
 public:
  std::string_view name() const override { return "SGD"; }
  std::vector<StateSlot> slots(DType precision) const override {
    return {{"momentum", "momentum", accumulator_of(precision)}};
  }
  void update(Backend&, Tensor weight, Tensor master, std::span<const Tensor> slots,
              Tensor gradient, Tensor scale, const UpdateOptions& options) const override {
    visit_float(weight.dtype(), [&]<class T>() {
      using A = Accumulator<T>;
      A *const w = master.as<A>(), *const m = slots[0].as<A>();
      const A *const g = gradient.as<A>(), by = *scale.as<A>();
      if (!std::isfinite(by)) return;
      for (std::int64_t i = 0; i < weight.elements(); ++i) {
        m[i] = static_cast<A>(0.9) * m[i] + by * g[i];
        w[i] -= static_cast<A>(options.lr) * m[i];
        weight.as<T>()[i] = T(w[i]);
      }
    });
  }
};

// All other parameters use AdamW. In a block, SGD's parameters are between others.
bool is_of_sgd(const Parameter& parameter) { return parameter.group == ParameterGroup::Mlp; }

OptimizerSettings mixed(const OptimizerSettings& settings = {}) {
  OptimizerSettings both = settings;
  both.rules = [adamw = make_adamw(settings),
                sgd = std::make_shared<Sgd>()](const Parameter& parameter) -> const UpdateRule& {
    if (is_of_sgd(parameter)) return *sgd;
    return *adamw;
  };
  return both;
}

Training training_of(const char* model, DType precision) {
  return {.model = tiny_model(model, 3),
          .precision = precision,
          .sequences = 8,
          .length = 8,
          .optimizer = mixed(),
          .lr = 1e-2};
}

fs::path save(const fs::path& directory, const Member& member, std::int64_t step) {
  TrainerState state;
  state.step = step;
  const fs::path saved = save_checkpoint(directory, member.engine, state, {.keep = 0});
  member.groups[GroupKind::World].barrier();
  return saved;
}

const RankLayout kLayouts[] = {
    {.dp = 4},
    {.dp = 4, .zero = 1},
    {.dp = 4, .zero = 3},
    {.dp = 4, .zero = 3, .shard_group = 2},
    {.dp = 2, .zero = 1, .tp = 2},
    {.dp = 2, .zero = 2, .pp = 2},
};

TEST(TwoUpdateRules, TrainAsOnOneRank) {
  for (const char* model : {"gpt2", "llama-gqa"}) {
    const Training training = training_of(model, DType::F64);
    const Outcome expected = trained({}, training, 5);
    EXPECT_LT(expected.losses.back(), expected.losses.front());
    for (const RankLayout& layout : kLayouts)
      expect_same(trained(layout, training, 5), expected, to_string(layout));
  }
}

TEST(TwoUpdateRules, LeaveTheOthersParametersAlone) {
  Training training = training_of("llama-gqa", DType::F32);
  training.optimizer.clip = 0;
  Training only_adamw = training;
  only_adamw.optimizer.rules = {};
  const ParameterSet set(training.model);
  const Outcome before = trained({}, training, 0), adamw = trained({}, only_adamw, 1);
  Outcome after;
  std::vector<float> momentum;
  on_ranks({}, training, [&](const Member& member) {
    train(member, 1, 1, after);
    const OptimizerState& state = member.engine.optimizer().state();
    for (const StateRange& segment : state.segments()) {
      if (segment.rule->name() != "SGD") continue;
      const Tensor slot = state.slot(segment, 0);
      ASSERT_EQ(slot.elements(), segment.range.size());
      momentum.resize(static_cast<std::size_t>(segment.range.end));
      member.engine.backend().download(&momentum[static_cast<std::size_t>(segment.range.begin)],
                                       slot);
    }
  });
  for (const Parameter& parameter : set.parameters())
    for (std::int64_t at = parameter.offset; at < parameter.offset + parameter.shape.elements();
         ++at) {
      const auto i = static_cast<std::size_t>(at);
      if (is_of_sgd(parameter)) {
        const auto weight = static_cast<float>(before.weights[i]);
        ASSERT_NEAR(after.weights[i], weight - 1e-2F * momentum[i], 1e-7) << parameter.name;
        ASSERT_NE(momentum[i], 0) << parameter.name;
      } else {
        ASSERT_EQ(after.weights[i], adamw.weights[i]) << parameter.name;
      }
    }
}

TEST(TwoUpdateRules, HaveTheirOwnStateOnly) {
  for (const DType precision : {DType::F32, DType::BF16}) {
    const Training training = training_of("llama-gqa", precision);
    const ParameterSet set(training.model);
    std::size_t all = 0, of_sgd = 0;
    for (std::size_t i = 0; i < set.parameters().size(); ++i) {  // with the padding after it
      const std::int64_t end =
          i + 1 < set.parameters().size() ? set.parameters()[i + 1].offset : set.buffer_elements();
      const auto elements = static_cast<std::size_t>(end - set.parameters()[i].offset);
      all += elements;
      of_sgd += is_of_sgd(set.parameters()[i]) ? elements : 0;
    }
    EXPECT_GT(of_sgd, 0u);
    const auto backend = make_cpu_backend(1);
    PlanningAllocator nothing;
    const Engine engine(*backend, nothing, training.engine({}));
    EXPECT_EQ(engine.arena().bytes(Region::Optimizer),
              (precision == DType::BF16 ? 4 : 0) * all + 8 * (all - of_sgd) + 4 * of_sgd + 8);
  }
}

TEST(TwoUpdateRules, ResumeFromACheckpointBitForBit) {
  for (const DType precision : {DType::F64, DType::BF16})
    for (const RankLayout& layout : kLayouts) {
      SCOPED_TRACE(fmt::format("{}, {}", to_string(layout), to_string(precision)));
      const Training training = training_of("gpt2", precision);
      const Outcome straight = trained(layout, training, 4);
      const TemporaryDirectory directory;
      Outcome outcome;
      fs::path middle;
      on_ranks(layout, training, [&](const Member& member) {
        train(member, 1, 2, outcome);
        const fs::path saved = save(directory.path(), member, 2);
        if (member.world.rank() == 0) middle = saved;
      });
      on_ranks(
          layout, training,
          [&](const Member& member) {
            load_checkpoint(middle, member.engine);
            train(member, 3, 4, outcome);
          },
          false);
      EXPECT_EQ(outcome.losses, straight.losses);
      EXPECT_EQ(outcome.weights, straight.weights);
      const SafetensorsModel state(state_directory(middle), "optimizer");
      const ParameterSet set(training.model);
      std::size_t tensors = precision == DType::BF16 ? set.parameters().size() : 0;
      for (const Parameter& parameter : set.parameters()) {
        const bool sgd = is_of_sgd(parameter);
        tensors += sgd ? 1 : 2;
        EXPECT_EQ(static_cast<bool>(state.find("momentum." + parameter.name)), sgd);
        EXPECT_EQ(static_cast<bool>(state.find("exp_avg." + parameter.name)), !sgd);
        EXPECT_EQ(static_cast<bool>(state.find("exp_avg_sq." + parameter.name)), !sgd);
      }
      EXPECT_EQ(state.names().size(), tensors);
    }
}

TEST(TwoUpdateRules, AreTheSameOffloaded) {
  for (const DType precision : {DType::F64, DType::BF16})
    for (const RankLayout& layout : {RankLayout{}, RankLayout{.dp = 4, .zero = 3}}) {
      Training training = training_of("llama-gqa", precision);
      training.backend = [](int threads) -> std::unique_ptr<Backend> {
        return std::make_unique<LateBackend>(threads);
      };
      const auto run = [&] {
        const TemporaryDirectory directory;
        std::pair<Outcome, std::map<std::string, std::string>> result;
        on_ranks(layout, training, [&](const Member& member) {
          train(member, 1, 5, result.first);
          const fs::path saved = save(directory.path(), member, 5);
          if (member.world.rank() == 0) result.second = directory_contents(state_directory(saved));
          member.groups[GroupKind::World].barrier();
        });
        return result;
      };
      const auto [expected, files] = run();
      EXPECT_FALSE(files.empty());
      for (const UpdateLocation location :
           {UpdateLocation::Device, UpdateLocation::Host, UpdateLocation::Auto})
        for (const std::int64_t elements : {208, 1 << 22}) {
          SCOPED_TRACE(fmt::format("{}, {}, {}, {}", to_string(layout), to_string(precision),
                                   to_string(location), elements));
          training.offload = {.on = true, .update = location, .block_elements = elements};
          const auto [actual, saved] = run();
          EXPECT_EQ(actual.losses, expected.losses);
          EXPECT_EQ(actual.weights, expected.weights);
          EXPECT_TRUE(saved == files);
        }
      // Offloaded gradients are summed in another order, but every element is updated.
      training.offload = {
          .on = true, .gradients = true, .update = UpdateLocation::Device, .block_elements = 208};
      if (precision == DType::F64) {
        EXPECT_LT(difference(run().first.weights, expected.weights), 1e-8);
      }
    }
}

}  // namespace
}  // namespace kintsugi
