// Mixtures of experts: the same run in every layout, and losses that keep them in balance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "support/parallel_run.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

Training mixture_training(const std::string& kind) {
  Training training{.model = tiny_model(kind, 3),
                    .sequences = 12,
                    .micro = 2,
                    .length = 8,
                    .masked = true,
                    .optimizer = {.clip = 0.1}};  // so that the gradient norm matters
  training.model.balance.loss = 0.05;
  training.model.balance.z_loss = 0.01;
  return training;
}

// The biases of all routers.
std::vector<double> biases_of(const Outcome& outcome, const Training& training) {
  std::vector<double> biases;
  const ParameterSet whole(training.model);
  for (const Parameter& parameter : whole.parameters())
    if (parameter.wide)
      biases.insert(biases.end(), outcome.weights.begin() + parameter.offset,
                    outcome.weights.begin() + parameter.offset + parameter.shape.elements());
  return biases;
}

TEST(Experts, TrainInEveryLayoutAsInOneProcess) {
  using enum PipelineKind;
  for (const char* const kind :
       {"mixtral", "olmoe", "qwen3_moe", "dots1", "glm4_moe", "deepseek_v3"}) {
    const Training training = mixture_training(kind);
    const Outcome alone = trained({}, training, 3);
    const std::vector<double> biases = biases_of(alone, training);
    EXPECT_EQ(std::ranges::count(biases, 0.0) == std::ssize(biases), biases.empty()) << kind;
    for (const RankLayout& layout :
         {RankLayout{.tp = 2}, RankLayout{.tp = 4, .sequence_parallel = true}, RankLayout{.cp = 2},
          RankLayout{.dp = 2, .zero = 3}, RankLayout{.pp = 3, .schedule = ZeroBubbleH1},
          RankLayout{.dp = 2, .zero = 2, .tp = 2, .cp = 2, .sequence_parallel = true},
          RankLayout{.dp = 2, .zero = 1, .tp = 2, .pp = 3}}) {
      const Outcome outcome = trained(layout, training, 3);
      expect_same(outcome, alone, fmt::format("{}, {}", kind, to_string(layout)));
      EXPECT_EQ(biases_of(outcome, training), biases) << kind << ", " << to_string(layout);
    }
  }
}

// Experts on data ranks: more, fewer and as many as a shard group has.
TEST(Experts, TrainOnDataRanksAsInOneProcess) {
  using enum PipelineKind;
  for (const char* const kind : {"mixtral", "olmoe"}) {
    const Training training = mixture_training(kind);
    const Outcome alone = trained({}, training, 3);
    for (const RankLayout& layout :
         {RankLayout{.dp = 2, .experts = 2}, RankLayout{.dp = 4, .experts = 2},
          RankLayout{.dp = 4, .zero = 1, .experts = 2},
          RankLayout{.dp = 4, .zero = 2, .experts = 4},
          RankLayout{.dp = 2, .zero = 3, .experts = 2},
          RankLayout{.dp = 4, .zero = 3, .experts = 2},
          RankLayout{.dp = 4, .zero = 3, .shard_group = 2, .experts = 4},
          RankLayout{.dp = 4, .zero = 1, .shard_group = 2, .experts = 2},
          RankLayout{.dp = 2, .experts = 2, .tp = 2, .sequence_parallel = true},
          RankLayout{.experts = 2, .cp = 2},
          RankLayout{.dp = 2, .zero = 2, .experts = 2, .tp = 2, .cp = 2},
          RankLayout{.dp = 2, .experts = 2, .pp = 3, .schedule = ZeroBubbleH1},
          RankLayout{.dp = 2, .zero = 1, .experts = 2, .tp = 2, .pp = 3}})
      for (const Dispatch dispatch : {Dispatch::AllGather, Dispatch::AllToAll}) {
        RankLayout dispatched = layout;
        dispatched.dispatch = dispatch;
        expect_same(trained(dispatched, training, 3), alone,
                    fmt::format("{}, {}", kind, to_string(dispatched)));
      }
  }
}

TEST(Experts, AreRecomputedWithoutRoutingAgain) {
  using enum PipelineKind;
  Training training = mixture_training("olmoe");
  const Outcome alone = trained({}, training, 3);
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    training.recompute = recompute;
    for (const RankLayout& layout :
         {RankLayout{}, RankLayout{.tp = 2, .sequence_parallel = true},
          RankLayout{.dp = 2, .experts = 2}, RankLayout{.pp = 3, .schedule = ZeroBubbleH1},
          RankLayout{.dp = 2,
          .experts = 2,
          .dispatch = Dispatch::AllToAll,
          .pp = 3,
          .schedule = ZeroBubbleH1}})
      expect_same(trained(layout, training, 3), alone, to_string(layout));
  }
}

// Of 12 tokens with 2 choices of 4 experts each, an expert computes at most 4 choices of a
// sequence.
TEST(Experts, DropTheSameChoicesInEveryLayout) {
  using enum PipelineKind;
  Training training = mixture_training("mixtral");
  training.length = 12;
  training.model.balance.capacity = 0.6;
  const Outcome alone = trained({}, training, 3);
  for (const Recompute recompute : {Recompute::None, Recompute::Full}) {
    training.recompute = recompute;
    for (const RankLayout& layout :
         {RankLayout{}, RankLayout{.tp = 2, .sequence_parallel = true},
          RankLayout{.dp = 2, .zero = 2, .experts = 2},
          RankLayout{.dp = 4, .experts = 4, .dispatch = Dispatch::AllToAll},
          RankLayout{.pp = 3, .schedule = ZeroBubbleH1}})
      expect_same(trained(layout, training, 3), alone, to_string(layout));
  }
  const auto dropped_in = [&](const RankLayout& layout) {
    std::vector<double> dropped;
    on_ranks(layout, training, [&](const Member& member) {
      member.step(1);
      const std::vector<double> all = member.engine.total_dropped_choices();
      if (member.world.rank() == 0) dropped = all;
    });
    return dropped;
  };
  const std::vector<double> dropped = dropped_in({});
  EXPECT_GT(std::ranges::max(dropped), 0);
  for (const RankLayout& layout :
       {RankLayout{.tp = 2}, RankLayout{.dp = 2, .experts = 2}, RankLayout{.pp = 3}})
    EXPECT_EQ(dropped_in(layout), dropped) << to_string(layout);
  training.model.balance.capacity = 0;
  EXPECT_NE(trained({}, training, 3).losses, alone.losses) << "nothing was dropped";
}

TEST(Experts, AreUpdatedByMuonOneByOne) {
  Training training = mixture_training("qwen3_moe");
  training.optimizer.kind = OptimizerKind::Muon;
  const Outcome alone = trained({}, training, 3);
  for (const RankLayout& layout :
       {RankLayout{.tp = 2}, RankLayout{.dp = 2, .zero = 1, .tp = 2},
        RankLayout{.dp = 4, .zero = 2}, RankLayout{.dp = 4, .experts = 2},
        RankLayout{.dp = 4, .zero = 3, .experts = 2},
        RankLayout{.dp = 2, .zero = 1, .experts = 2, .tp = 2}})
    expect_same(trained(layout, training, 3), alone, to_string(layout));
}

class ExpertsOfAFamily : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, ExpertsOfAFamily, testing::Values("mixtral", "dots1"));

TEST_P(ExpertsOfAFamily, AreSavedAndContinuedInAnotherLayout) {
  const Training training = mixture_training(GetParam());
  const Outcome alone = trained({}, training, 4);
  const TemporaryDirectory directory;
  std::filesystem::path middle;
  Outcome outcome;
  on_ranks({.dp = 2, .zero = 2, .experts = 2, .tp = 2}, training, [&](const Member& member) {
    train(member, 1, 2, outcome);
    TrainerState state;
    state.step = 2;
    const auto saved = save_checkpoint(directory.path(), member.engine, state, {.keep = 0});
    if (member.world.rank() == 0) middle = saved;
  });
  const SafetensorsModel files(middle);
  EXPECT_TRUE(files.find(training.model.family == Family::Mixtral
                             ? "model.layers.2.block_sparse_moe.experts.3.w2.weight"
                             : "model.layers.2.mlp.experts.3.down_proj.weight"));
  on_ranks(
      {.dp = 4, .zero = 1, .experts = 4}, training,
      [&](const Member& member) {
        load_checkpoint(middle, member.engine);
        train(member, 3, 4, outcome);
      },
      false);
  expect_same(outcome, alone, "saved and continued");
  EXPECT_EQ(biases_of(outcome, training), biases_of(alone, training));
}

// In 16 bits, biases stay in fp32, in memory and in files, whether they are sharded or not: bf16
// has no number as close to 0.03.
TEST(Experts, HaveBiasesInFp32InRunsOf16Bits) {
  Training training = mixture_training("glm4_moe");
  training.precision = DType::BF16;
  training.optimizer = {.clip = 0, .ema = {.decay = 0.5}};
  const std::string name = "model.layers.2.mlp.gate.e_score_correction_bias";
  std::vector<double> first;
  for (const int zero : {0, 1, 2, 3}) {
    const RankLayout layout{.dp = 2, .zero = zero};
    const TemporaryDirectory directory;
    std::filesystem::path saved;
    Outcome outcome, continued;
    on_ranks(layout, training, [&](const Member& member) {
      train(member, 1, 3, outcome);
      const auto path = save_checkpoint(directory.path(), member.engine, {}, {.keep = 0});
      if (member.world.rank() == 0) saved = path;
    });
    const std::vector<double> biases = biases_of(outcome, training);
    if (first.empty()) first = biases;
    EXPECT_EQ(biases, first) << "ZeRO " << zero;
    for (const double bias : biases) {
      const double steps = std::round(bias / 0.01);
      EXPECT_NEAR(bias, 0.01 * steps, 1e-8 * std::abs(steps));
      EXPECT_LE(std::abs(steps), 3);
    }
    for (const std::filesystem::path& files : {saved, saved / "ema"}) {
      const SafetensorsModel model(files);
      EXPECT_EQ(model.find(name).entry->dtype, DType::F32) << files;
    }
    on_ranks(
        layout, training,
        [&](const Member& member) {
          load_checkpoint(saved, member.engine);
          train(member, 4, 3, continued);  // no step
        },
        false);
    EXPECT_EQ(biases_of(continued, training), biases) << "ZeRO " << zero;
  }
}

// The counts of the last step belong to it, not to ranks and micro-batches.
TEST(Experts, AreBalancedOverTheBatchAsInOneProcess) {
  using enum PipelineKind;
  for (const char* const kind : {"olmoe", "dots1"}) {
    Training training = mixture_training(kind);
    const Outcome by_sequence = trained({}, training, 4);
    training.model.balance.scope = BalanceScope::Batch;
    const Outcome alone = trained({}, training, 4);
    EXPECT_NE(alone.losses, by_sequence.losses) << kind;
    for (const RankLayout& layout :
         {RankLayout{.tp = 2, .sequence_parallel = true}, RankLayout{.cp = 2},
          RankLayout{.dp = 2, .zero = 3}, RankLayout{.pp = 3, .schedule = ZeroBubbleH1},
          RankLayout{.dp = 4, .zero = 1, .experts = 4, .dispatch = Dispatch::AllToAll},
          RankLayout{.dp = 2, .zero = 2, .experts = 2, .tp = 2, .cp = 2}})
      expect_same(trained(layout, training, 4), alone,
                  fmt::format("{}, {}", kind, to_string(layout)));
    training.recompute = Recompute::Full;
    for (const std::int64_t micro : {1, 6}) {
      training.micro = micro;
      expect_same(trained({}, training, 4), alone, fmt::format("{}, micro {}", kind, micro));
    }
  }
}

// One rank, with weights of the routers that are all `router`; otherwise random.
struct OneRank {
  Training training;
  std::unique_ptr<Backend> backend = training.backend(1);
  Engine engine{*backend, *backend, training.engine({})};

  explicit OneRank(Training of, bool zero_routers) : training(std::move(of)) {
    engine.initialize(11);
    const ParameterStore& store = engine.sharding().store();
    for (int i = 0; i < static_cast<int>(store.set().parameters().size()); ++i)
      if (zero_routers && store.set()[i].group == ParameterGroup::Router)
        backend->fill(store.weight(i), 0.0);
  }
  StepResult step(std::int64_t number, bool with_targets, double lr = 1e-2) {
    const std::vector<std::int32_t> ids = tokens(), none(ids.size(), -1);
    return engine.step({.ids = ids, .targets = with_targets ? ids : none},
                       {.step = number, .lr = lr});
  }
  static std::vector<std::int32_t> tokens() {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(12 * 8));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7 % 23);
    return ids;
  }
  std::span<double> weight(const std::string& name) const {
    return numbers(name, &ParameterStore::weight);
  }
  std::span<double> gradient(const std::string& name) const {
    return numbers(name, &ParameterStore::gradient);
  }

 private:
  std::span<double> numbers(const std::string& name,
                            Tensor (ParameterStore::*of)(int) const) const {
    const ParameterStore& store = engine.sharding().store();
    const Tensor x = (store.*of)(store.set().index(name));
    return {x.as<double>(), static_cast<std::size_t>(x.elements())};
  }
};

// If all logits are 0, the first experts are chosen by all tokens: ties go to the lowest index. The
// loss is 1 per layer then, and log Z the logarithm of the number of experts.
TEST(Experts, HaveBalanceLossesOfTheFormula) {
  OneRank alone(mixture_training("mixtral"), true);
  const StepResult result = alone.step(1, true);
  EXPECT_NEAR(value_of(result.scalars, "balance_loss"), 3 * 0.05, 1e-12);
  EXPECT_NEAR(value_of(result.scalars, "router_z_loss"), 3 * 0.01 * std::pow(std::log(4.0), 2),
              1e-12);
  const std::vector<double> counts = alone.engine.expert_counts();
  for (std::size_t layer = 0; layer < 3; ++layer)
    for (std::size_t expert = 0; expert < 4; ++expert)
      EXPECT_EQ(counts[layer * 4 + expert], expert < 2 ? 12 * 8 : 0) << layer << ", " << expert;
}

// The probabilities of a token's experts in the only layer of a model whose attention is silent:
// the router reads the norm of its embedding.
std::vector<double> probabilities_of(const OneRank& one, std::int32_t token) {
  const ModelConfig& model = one.training.model;
  const auto hidden = static_cast<std::size_t>(model.hidden_size),
             experts = static_cast<std::size_t>(model.experts->count);
  const auto row = [&](const std::string& name, std::size_t i) {
    return one.weight(name).subspan(i * hidden, hidden);
  };
  const auto x = row("model.embed_tokens.weight", static_cast<std::size_t>(token)),
             scale = row("model.layers.0.post_attention_layernorm.weight", 0);
  const double square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  const double rms = std::sqrt(square / static_cast<double>(hidden) + model.norm_eps);
  std::vector<double> scores(experts, 0.0);
  for (std::size_t e = 0; e < experts; ++e) {
    const auto router = row("model.layers.0.block_sparse_moe.gate.weight", e);
    for (std::size_t i = 0; i < hidden; ++i) scores[e] += router[i] * x[i] / rms * scale[i];
    scores[e] = std::exp(scores[e]);
  }
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  for (double& score : scores) score /= sum;
  return scores;
}

// A model of one layer whose attention is silent, with large routers.
struct BalancedByBatch : OneRank {
  BalancedByBatch() : OneRank(one_layer(), false) {
    std::ranges::fill(weight("model.layers.0.self_attn.o_proj.weight"), 0.0);
    for (double& w : weight("model.layers.0.block_sparse_moe.gate.weight")) w *= 20;
  }
  static Training one_layer() {
    Training training = mixture_training("mixtral");
    training.model = tiny_model("mixtral", 1);
    training.model.balance = {.loss = 0.05, .scope = BalanceScope::Batch};
    return training;
  }
};

// loss = E / (k N) sum over experts of n(e) times the mean of p(e), with the n of the step before;
// an even count has the loss 1.
TEST(Experts, HaveABalanceLossOfTheLastStep) {
  BalancedByBatch one;
  std::vector<double> n(4, 0.0), mean(4, 0.0);
  for (const std::int32_t token : OneRank::tokens()) {
    const std::vector<double> p = probabilities_of(one, token);
    for (std::size_t e = 0; e < 4; ++e) {
      mean[e] += p[e] / (12 * 8);
      n[e] += std::ranges::count_if(p, [&](double other) { return other > p[e]; }) < 2 ? 1 : 0;
    }
  }
  const double expected =
      0.05 * 4 / (2.0 * 12 * 8) * std::inner_product(n.begin(), n.end(), mean.begin(), 0.0);
  EXPECT_GT(expected, 1.005 * 0.05) << "the routers prefer some experts";
  const auto loss = [&](std::int64_t step) {
    return value_of(one.step(step, true, 0.0).scalars, "balance_loss");
  };
  EXPECT_NEAR(loss(1), 0.05, 1e-14) << "the first step counts evenly";
  EXPECT_NEAR(loss(2), expected, 1e-14);
  one.engine.evaluate({.ids = std::vector<std::int32_t>(12 * 8, 5),
                       .targets = std::vector<std::int32_t>(12 * 8, 5)});
  EXPECT_NEAR(loss(3), expected, 1e-14) << "after a validation";
  const std::vector<std::int32_t> others(12 * 8, 5);
  const StepResult skipped =
      one.engine.step({.ids = others, .targets = others},
                      {.step = 4, .lr = 0, .loss_scale = std::numeric_limits<double>::infinity()});
  EXPECT_TRUE(skipped.skipped());
  EXPECT_NEAR(loss(5), expected, 1e-14) << "after a step that was skipped";
  one.engine.set_balance_counts({});
  EXPECT_NEAR(loss(6), 0.05, 1e-14);
}

// The gradient of the loss with given counts, by finite differences of what the metric says.
TEST(Experts, HaveTheGradientOfTheBalanceLossOfTheLastStep) {
  BalancedByBatch one;
  const std::vector<double> counts = {70, 2, 100, 20};
  const auto loss = [&](std::int64_t step) {
    one.engine.set_balance_counts(counts);
    return value_of(one.step(step, false, 0.0).scalars, "balance_loss");  // summed over the tokens
  };
  for (const char* const name :
       {"model.layers.0.block_sparse_moe.gate.weight", "model.embed_tokens.weight"}) {
    loss(1);
    const std::vector<double> gradient(one.gradient(name).begin(), one.gradient(name).end());
    double largest = 0;
    for (const std::size_t i : {0, 5, 17, 40}) {
      constexpr double kStep = 1e-5;
      double& w = one.weight(name)[i];
      const double before = w;
      w = before + kStep;
      const double above = loss(2);
      w = before - kStep;
      const double below = loss(3);
      w = before;
      const double slope = (above - below) / (2 * kStep);
      EXPECT_NEAR(12 * 8 * gradient[i], slope, 1e-7 + 1e-6 * std::abs(slope)) << name << ", " << i;
      largest = std::max(largest, std::abs(slope));
    }
    EXPECT_GT(largest, 1e-3) << name;
  }
}

// All tokens choose experts 0 and 1, which compute 2 of the 8 choices of a sequence each.
TEST(Experts, CountWhatTheyDrop) {
  Training training = mixture_training("mixtral");
  training.model.balance.capacity = 0.5;
  OneRank alone(std::move(training), true);
  const StepResult result = alone.step(1, true);
  EXPECT_NEAR(value_of(result.scalars, "dropped_choices"), 3 * 2 * 6 / 8.0, 1e-12);
  EXPECT_EQ(alone.engine.total_dropped_choices(), std::vector<double>(3, 12 * 2 * 6));
}

// Without any target, only these losses have gradients, and steps make them smaller.
TEST(Experts, AreBalancedByTheirLossesAlone) {
  Training training = mixture_training("olmoe");
  training.model.balance = {.loss = 1, .z_loss = 0.1};
  OneRank alone(std::move(training), false);
  double first = 0, last = 0;
  for (std::int64_t step = 1; step <= 40; ++step) {
    const StepResult result = alone.step(step, false);
    EXPECT_EQ(result.loss, 0);
    last = value_of(result.scalars, "balance_loss") / (12 * 8);
    if (step == 1) first = last;
  }
  EXPECT_LT(last, first);
  EXPECT_LT(last, 3 * 1.05) << "3 layers in balance have 3";
}

// The biases of a rank's routers, by layer and expert; of layers without experts 0.
std::vector<double> biases_in(const OneRank& one) {
  const ParameterStore& store = one.engine.sharding().store();
  std::vector<double> biases(3 * 4, 0.0);
  for (int i = 0; i < static_cast<int>(store.set().parameters().size()); ++i)
    if (store.set()[i].wide)
      std::copy_n(
          store.weight(i).as<double>(), 4,
          biases.begin() +
              4 * store.set().buckets()[static_cast<std::size_t>(store.set()[i].bucket)].layer);
  return biases;
}

// b(e) += speed * sign(mean of n - n(e)), from the counts of the step.
TEST(Experts, HaveBiasesThatFollowTheirLoads) {
  OneRank alone(mixture_training("dots1"), false);
  std::vector<double> expected(3 * 4, 0.0);
  int moved = 0;
  for (std::int64_t step = 1; step <= 3; ++step) {
    alone.step(step, true);
    const std::vector<double> counts = alone.engine.expert_counts();
    for (std::size_t i = 4; i < counts.size(); ++i) {  // layer 0 is dense
      const double mean = 2.0 * 12 * 8 / 4;
      if (counts[i] != mean) expected[i] += counts[i] < mean ? 0.01 : -0.01;
      moved += counts[i] != mean ? 1 : 0;
    }
    EXPECT_EQ(biases_in(alone), expected) << "step " << step;
  }
  EXPECT_GT(moved, 8);
}

TEST(Experts, HaveBiasesThatOnlyStepsMove) {
  OneRank alone(mixture_training("dots1"), false);
  alone.step(1, true);
  const std::vector<double> before = biases_in(alone);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(12 * 8), 5);
  alone.engine.evaluate({.ids = ids, .targets = ids});
  EXPECT_EQ(biases_in(alone), before) << "after a validation";
  const StepResult skipped = alone.engine.step(
      {.ids = ids, .targets = ids},
      {.step = 2, .lr = 1e-2, .loss_scale = std::numeric_limits<double>::infinity()});
  EXPECT_TRUE(skipped.skipped());
  EXPECT_EQ(biases_in(alone), before) << "after a step that was skipped";
  alone.training.model.balance.bias_speed = 0;
  OneRank still(alone.training, false);
  still.step(1, true);
  EXPECT_EQ(biases_in(still), std::vector<double>(3 * 4, 0.0)) << "without speed";
  alone.training.model.balance.bias_speed = 0.01;
  alone.training.model.freeze = {"model.layers.1.*"};
  OneRank frozen(alone.training, false);
  frozen.step(1, true);
  for (std::size_t i = 0; i < 3 * 4; ++i)
    EXPECT_TRUE(i >= 8 || biases_in(frozen)[i] == 0) << "a frozen layer";
}

// The balance loss counts the choices that would be made without the bias.
TEST(Experts, HaveABalanceLossThatNoBiasChanges) {
  const Training training = mixture_training("dots1");
  OneRank plain(training, false), biased(training, false);
  const ParameterStore& store = biased.engine.sharding().store();
  const int last = store.set().index("model.layers.2.mlp.gate.e_score_correction_bias");
  store.weight(last).as<double>()[3] = 1;  // all tokens choose it
  const double loss = value_of(plain.step(1, true).scalars, "balance_loss");
  EXPECT_EQ(value_of(biased.step(1, true).scalars, "balance_loss"), loss);
  EXPECT_EQ(biased.engine.expert_counts()[2 * 4 + 3], 12 * 8);
  EXPECT_NE(plain.engine.expert_counts()[2 * 4 + 3], 12 * 8);
}

// All choices of a step are counted once, in every layout and with recomputation.
TEST(Experts, AreCountedOnce) {
  Training training = mixture_training("qwen3_moe");
  const auto counts_of = [&](const RankLayout& layout) {
    std::vector<double> sum;
    on_ranks(layout, training, [&](const Member& member) {
      member.step(1);
      const std::vector<double> counts = member.engine.total_expert_counts();
      if (member.world.rank() == 0) sum = counts;
    });
    return sum;
  };
  const std::vector<double> alone = counts_of({});
  EXPECT_EQ(std::accumulate(alone.begin(), alone.end(), 0.0), 2 * 2 * 12 * 8) << "layer 1 is dense";
  for (const RankLayout& layout :
       {RankLayout{.tp = 2}, RankLayout{.cp = 2}, RankLayout{.dp = 2, .zero = 1},
        RankLayout{.pp = 3}, RankLayout{.dp = 2, .experts = 2}})
    EXPECT_EQ(counts_of(layout), alone) << to_string(layout);
  training.recompute = Recompute::Full;
  EXPECT_EQ(counts_of({.tp = 2}), alone);
}

}  // namespace
}  // namespace kintsugi
