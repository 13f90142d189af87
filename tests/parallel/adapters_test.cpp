// Low-rank adapters and frozen parameters: every layout trains the same run, and only what is to be
// trained changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "model/lora.h"
#include "model/metrics.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

using enum PipelineKind;

Training with_adapters(const std::string& kind, double dropout = 0) {
  Training training{.model = tiny_model(kind, 4),
                    .sequences = 8,
                    .length = 8,
                    .dropout = dropout / 2,
                    .masked = true};
  training.model.lora = {.r = 3, .alpha = 5, .dropout = dropout, .targets = {"all-linear"}};
  if (training.model.experts) training.model.lora.dropout = 0;  // their adapters have none
  return training;
}

const std::vector<RankLayout>& adapter_layouts() {
  static const std::vector<RankLayout> all = {
      {.dp = 2},
      {.dp = 2, .zero = 1},
      {.dp = 4, .zero = 3, .shard_group = 2},
      {.dp = 2, .zero = 2, .tp = 2},
      {.dp = 2, .zero = 3, .tp = 2, .sequence_parallel = true},
      {.tp = 4, .sequence_parallel = true},
      {.pp = 2},
      {.dp = 2, .zero = 3, .pp = 2, .chunks = 2, .schedule = Interleaved},
      {.tp = 2, .pp = 2, .schedule = ZeroBubbleH1},
  };
  return all;
}

class AdapterLayouts : public testing::TestWithParam<const char*> {};

TEST_P(AdapterLayouts, TrainAsOneProcessDoes) {
  const Training training = with_adapters(GetParam(), 0.3);
  const Outcome alone = trained({}, training, 4);
  for (const RankLayout& layout : adapter_layouts())
    expect_same(trained(layout, training, 4), alone, to_string(layout));
}
INSTANTIATE_TEST_SUITE_P(Families, AdapterLayouts,
                         testing::Values("gpt2", "llama-gqa", "bloom", "qwen3", "retnet",
                                         "deepseek_v3"));

// The elements that a run of two steps changes, by parameter of the whole model.
std::vector<std::string> changed_parameters(const Training& training, const RankLayout& layout) {
  const Outcome before = trained(layout, training, 0), after = trained(layout, training, 3);
  std::vector<std::string> changed;
  const ParameterSet set(training.model);
  for (const Parameter& parameter : set.parameters()) {
    const auto begin = static_cast<std::size_t>(parameter.offset),
               end = begin + static_cast<std::size_t>(parameter.shape.elements());
    for (std::size_t i = begin; i < end; ++i)
      if (before.weights[i] != after.weights[i]) {
        changed.push_back(parameter.name);
        break;
      }
  }
  std::sort(changed.begin(), changed.end());
  return changed;
}

// Experts on tensor ranks and on data ranks.
TEST(AdaptersOfExperts, TrainInEveryLayoutAsInOneProcess) {
  for (const char* const kind : {"mixtral", "olmoe", "glm4_moe"}) {
    const Training training = with_adapters(kind);
    const Outcome alone = trained({}, training, 4);
    std::vector<RankLayout> layouts = adapter_layouts();
    layouts.push_back({.dp = 2, .zero = 2, .tp = 2, .cp = 2, .sequence_parallel = true});
    for (const Dispatch dispatch : {Dispatch::AllGather, Dispatch::AllToAll}) {
      layouts.push_back({.dp = 2, .experts = 2, .dispatch = dispatch});
      layouts.push_back({.dp = 4, .zero = 1, .experts = 2, .dispatch = dispatch});
      layouts.push_back({.dp = 2, .zero = 2, .experts = 2, .dispatch = dispatch, .tp = 2});
      layouts.push_back({.dp = 4, .zero = 3, .experts = 2, .dispatch = dispatch});
      layouts.push_back({.experts = 2, .dispatch = dispatch, .cp = 2});
      layouts.push_back(
          {.dp = 2, .experts = 2, .dispatch = dispatch, .pp = 2, .schedule = ZeroBubbleH1});
    }
    for (const RankLayout& layout : layouts)
      expect_same(trained(layout, training, 4), alone,
                  fmt::format("{}, {}", kind, to_string(layout)));
  }
}

// Gate without up, up without gate, and an output alone, also where choices are dropped.
TEST(AdaptersOfExperts, MayBeOfSomeMatrices) {
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"w1"}, {"w3", "w2"}, {"w2"}}) {
    Training training = with_adapters("mixtral");
    training.model.lora.targets = targets;
    training.model.balance.capacity = 1;
    const Outcome alone = trained({}, training, 3);
    for (const RankLayout& layout :
         {RankLayout{.tp = 2, .sequence_parallel = true},
          RankLayout{.dp = 2, .zero = 3, .experts = 2, .dispatch = Dispatch::AllToAll}})
      expect_same(trained(layout, training, 3), alone, to_string(layout));
    std::vector<std::string> expected;
    for (int layer = 0; layer < 4; ++layer)
      for (int expert = 0; expert < 4; ++expert)
        for (const std::string& target : targets)
          for (const char* matrix : {"lora_A", "lora_B"})
            expected.push_back(
                fmt::format("base_model.model.model.layers.{}.block_sparse_moe.experts.{}.{}.{}"
                            ".weight",
                            layer, expert, target, matrix));
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(changed_parameters(training, {}), expected);
  }
}

TEST(AdaptersOfExperts, AreRecomputedAndOffloaded) {
  Training training = with_adapters("olmoe");
  const Outcome alone = trained({}, training, 4);
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full}) {
    training.recompute = recompute;
    training.offload = {};
    for (const RankLayout& layout :
         {RankLayout{}, RankLayout{.tp = 2, .pp = 2, .schedule = ZeroBubbleH1},
          RankLayout{.dp = 2,
          .experts = 2,
          .dispatch = Dispatch::AllToAll,
          .pp = 2,
          .schedule = ZeroBubbleH1}})
      expect_same(trained(layout, training, 4), alone, to_string(layout));
    training.offload = {.on = true, .gradients = true};
    expect_same(trained({.dp = 4, .zero = 3, .experts = 2}, training, 4), alone, "offloaded");
  }
}

TEST(AdaptersTest, ContextParallelRunsAreTheSame) {
  const Training training = with_adapters("llama-gqa", 0.2);
  const Outcome alone = trained({}, training, 4);
  for (const RankLayout& layout :
       {RankLayout{.cp = 2}, RankLayout{.dp = 2, .zero = 3, .tp = 2, .cp = 2}})
    expect_same(trained(layout, training, 4), alone, to_string(layout));
}

TEST(AdaptersTest, RecomputationAndOffloadChangeNothing) {
  Training training = with_adapters("llama-gqa", 0.2);
  const Outcome alone = trained({}, training, 4);
  for (const Recompute recompute : {Recompute::Selective, Recompute::Full})
    for (const bool offload : {false, true}) {
      training.recompute = recompute;
      training.offload = {.on = offload, .gradients = offload};
      expect_same(trained({.dp = 2, .zero = 3}, training, 4), alone, "recomputed");
      if (!offload)
        expect_same(trained({.pp = 2, .schedule = ZeroBubbleH1}, training, 4), alone, "halved");
    }
}

TEST(AdaptersTest, OnlyAdaptersChange) {
  Training training = with_adapters("llama-gqa");
  training.model.lora.targets = {"q_proj", "down_proj"};
  training.model.lora.train = {"norm"};
  std::vector<std::string> expected = {"model.norm.weight"};
  for (int layer = 0; layer < 4; ++layer)
    for (const char* module : {"self_attn.q_proj", "mlp.down_proj"})
      for (const char* matrix : {"lora_A", "lora_B"})
        expected.push_back("base_model.model.model.layers." + std::to_string(layer) + "." + module +
                           "." + matrix + ".weight");
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(changed_parameters(training, {}), expected);
  EXPECT_EQ(changed_parameters(training, {.dp = 2, .zero = 3, .tp = 2}), expected);
}

TEST(FrozenParameters, StayAndOthersTrainAsBeforeInEveryLayout) {
  // Whole layers, parts of layers, and everything but the head: then most stages train nothing.
  const std::vector<std::vector<std::string>> cases = {
      {"model.embed_tokens", "model.layers.0.*", "model.layers.1.*norm*"},
      {"*_proj.weight"},
      {"model.*"}};
  for (const auto& freeze : cases) {
    Training training{
        .model = tiny_model("llama-untied", 4), .sequences = 8, .length = 8, .masked = true};
    training.model.freeze = freeze;
    const Outcome alone = trained({}, training, 3);
    const std::vector<std::string> changed = changed_parameters(training, {});
    const ParameterSet set(training.model);
    for (const Parameter& parameter : set.parameters())
      EXPECT_EQ(std::count(changed.begin(), changed.end(), parameter.name),
                is_trained(training.model, parameter) ? 1 : 0)
          << parameter.name;
    for (const RankLayout& layout : adapter_layouts())
      expect_same(trained(layout, training, 3), alone, to_string(layout));
    training.offload = {.on = true, .gradients = true};
    expect_same(trained({.dp = 2, .zero = 3, .pp = 2}, training, 3), alone, "offloaded");
  }
}

TEST(FrozenParameters, OfOtherFamiliesToo) {
  for (const char* kind : {"gpt2", "bloom", "qwen3"}) {
    Training training{.model = tiny_model(kind, 2), .sequences = 4, .length = 8};
    training.model.freeze = {"*norm*", "*ln_*", "*bias", "*embed*", "transformer.w?e*"};
    const Outcome alone = trained({}, training, 3);
    for (const RankLayout& layout :
         {RankLayout{.dp = 2, .zero = 3, .tp = 2, .sequence_parallel = true},
          RankLayout{.dp = 2, .zero = 1, .pp = 2}})
      expect_same(trained(layout, training, 3), alone, to_string(layout));
  }
}

// The gradient of every adapter, from differences of the loss: y += s (x A^T) B^T.
TEST(AdaptersTest, LossFallsAlongTheGradient) {
  Training training = with_adapters("llama-gqa");
  training.sequences = 2;
  training.masked = false;
  training.optimizer.clip = 0;
  training.lr = 1e-7;
  // The first update moves every element with a gradient by lr against its sign, so the loss falls
  // by lr times the sum of the absolute gradients; the norm is that of the same gradients.
  on_ranks({}, training, [](const Member& member) {
    member.step(1);  // B is no longer zero
    const double before = member.evaluate(2);
    const StepResult result = member.step(2);
    EXPECT_GT(result.gradient_norm, 0);
    EXPECT_LT(member.evaluate(2), before);
  });
}

TEST(FrozenParameters, HaveNoGradientsAndNoState) {
  const auto bytes_of = [](const Training& training, Region region) {
    std::size_t bytes = 0;
    on_ranks({}, training,
             [&](const Member& member) { bytes = member.engine.arena().bytes(region); });
    return bytes;
  };
  Training training{.model = tiny_model("llama-untied", 4), .precision = DType::BF16, .length = 8};
  const auto whole = static_cast<std::size_t>(ParameterSet(training.model).buffer_elements());
  EXPECT_EQ(bytes_of(training, Region::Weights), 2 * whole);
  training.model.lora = {.r = 2, .alpha = 4, .targets = {"all-linear"}};
  const ParameterSet set(training.model);
  std::size_t trained = 0;
  for (const Bucket& bucket : set.buckets())
    if (bucket.trained) trained += static_cast<std::size_t>(bucket.end - bucket.begin);
  EXPECT_LT(trained, whole / 2);
  EXPECT_EQ(bytes_of(training, Region::Weights), 2 * (whole + trained));
  EXPECT_EQ(bytes_of(training, Region::Gradients), 4 * trained);
  // Master weights and two moments; a few scalars beside them.
  EXPECT_NEAR(static_cast<double>(bytes_of(training, Region::Optimizer)),
              12.0 * static_cast<double>(trained), 1024);
}

// Per matmul with a matrix of n elements: forward 2 n, gradient of its input 2 n, its own 2 n.
TEST(FrozenParameters, SaveTheWorkOfTheirGradients) {
  ModelConfig model = tiny_model("llama-untied", 4);
  const TrainingFlops all = training_flops_per_token(model, 8);
  const ParameterSet set(model);
  double head = 0, blocks = 0;
  for (const Parameter& parameter : set.parameters()) {
    if (!parameter.overwritten) continue;
    (parameter.group == ParameterGroup::Head ? head : blocks) +=
        static_cast<double>(parameter.shape.elements());
  }
  EXPECT_DOUBLE_EQ(all.linear, 6 * (head + blocks));
  model.freeze = {"model.layers.0.*", "model.layers.1.*", "model.embed_tokens"};
  EXPECT_EQ(first_trained_layer(model), 2);
  EXPECT_DOUBLE_EQ(training_flops_per_token(model, 8).linear, 6 * (head + blocks / 2) + blocks);
  EXPECT_DOUBLE_EQ(training_flops_per_token(model, 8).attention_causal,
                   all.attention_causal * (3 + 1) / 6);
  model.freeze = {"model.*"};
  EXPECT_EQ(first_trained_layer(model), 4);
  EXPECT_DOUBLE_EQ(training_flops_per_token(model, 8).linear, 6 * head + 2 * blocks);
  model.freeze = {"*_proj"};
  EXPECT_EQ(first_trained_layer(model), -1);
  EXPECT_DOUBLE_EQ(training_flops_per_token(model, 8).linear, 6 * head + 4 * blocks);
}

TEST(AdaptersTest, NamesAndShapesAreThoseOfPeft) {
  ModelConfig model = tiny_model("gpt2", 2);
  model.lora = {.r = 4, .alpha = 8};
  std::vector<std::string> names;
  const ParameterSet set(model);
  for (const Parameter& parameter : set.parameters())
    if (parameter.group == ParameterGroup::Adapter) {
      names.push_back(parameter.name);
      const bool a = parameter.name.ends_with("lora_A.weight");
      EXPECT_EQ(parameter.global,
                a ? Shape({4, model.hidden_size}) : Shape({3 * model.hidden_size, 4}));
    }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{
                       "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight",
                       "base_model.model.transformer.h.0.attn.c_attn.lora_B.weight",
                       "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight",
                       "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"}));
}

// As of the linear modules that transformers 4 has for each expert. The default is that of other
// models: queries and values.
TEST(AdaptersOfExperts, HaveTheNamesOfTheirModules) {
  ModelConfig model = tiny_model("qwen3_moe", 1);
  const auto adapters = [&](std::vector<std::string> targets) {
    model.lora = {.r = 3, .alpha = 3, .targets = std::move(targets)};
    std::map<std::string, Shape> shapes;
    const ParameterSet set(model);
    for (const Parameter& parameter : set.parameters())
      if (parameter.group == ParameterGroup::Adapter) shapes[parameter.name] = parameter.global;
    return shapes;
  };
  EXPECT_EQ(adapters({}).size(), 4u);
  const auto all = adapters({"all-linear"}), down = adapters({"down_proj"});
  EXPECT_EQ(all.size(), 2u * (4 + 3 * 4));
  EXPECT_EQ(down.size(), 2u * 4);
  const std::string last = "base_model.model.model.layers.0.mlp.experts.3.down_proj.";
  EXPECT_EQ(down.at(last + "lora_A.weight"), Shape({3, 8}));
  EXPECT_EQ(down.at(last + "lora_B.weight"), Shape({16, 3}));
  EXPECT_EQ(all.at("base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_B.weight"),
            Shape({8, 3}));
}

TEST(AdaptersTest, ScaleIsAlphaOverRankOrItsRoot) {
  EXPECT_DOUBLE_EQ((LoraConfig{.r = 16, .alpha = 32}).scale(), 2.0);
  EXPECT_DOUBLE_EQ((LoraConfig{.r = 16, .alpha = 32, .rslora = true}).scale(), 8.0);
}

TEST(AdaptersTest, MistakesAreNamed) {
  const auto complaint = [](const std::function<void(ModelConfig&)>& change) -> std::string {
    ModelConfig model = tiny_model("llama-gqa", 2);
    change(model);
    try {
      check_trained(model);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(complaint([](ModelConfig& m) { m.freeze = {"model.embed_tokens"}; }), "");
  EXPECT_NE(complaint([](ModelConfig& m) { m.freeze = {"model.embd"}; }).find("model.embd"),
            std::string::npos);
  EXPECT_NE(complaint([](ModelConfig& m) { m.freeze = {"*.q_proj"}; }).find("k_proj"),
            std::string::npos);
  EXPECT_NE(complaint([](ModelConfig& m) { m.freeze = {"*"}; }).find("nothing to train"),
            std::string::npos);
  EXPECT_NE(complaint([](ModelConfig& m) {
              m.lora = {.r = 2, .alpha = 1, .targets = {"c_attn"}};
            }).find("q_proj"),
            std::string::npos);
  EXPECT_NE(complaint([](ModelConfig& m) {
              m.lora = {.r = 2, .alpha = 1, .train = {"score"}};
            }).find("score"),
            std::string::npos);
}

TEST(AdaptersOfExperts, HaveMistakesThatAreNamed) {
  const auto complaint = [](std::vector<std::string> targets, double dropout = 0) -> std::string {
    ModelConfig model = tiny_model("glm4_moe", 2);
    model.lora = {.r = 2, .alpha = 1, .dropout = dropout, .targets = std::move(targets)};
    try {
      check_trained(model);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(complaint({"all-linear"}), "");
  EXPECT_EQ(complaint({"q_proj", "shared_experts.gate_proj"}, 0.1), "");
  EXPECT_EQ(complaint({"w1"}),
            "adapter.targets: the model has no matrix named w1: it has down_proj, gate_proj, "
            "k_proj, o_proj, q_proj, up_proj, v_proj, or use all-linear");
  EXPECT_EQ(complaint({"gate_proj"}, 0.1),
            "adapter.dropout is 0.1, but adapters of experts have no dropout: set it to 0, or name "
            "matrices outside of the experts in adapter.targets");
  EXPECT_EQ(complaint({"experts.2.up_proj"}),
            "adapter.targets names only one of model.layers.1.mlp.experts.0.up_proj and "
            "model.layers.1.mlp.experts.2.up_proj, but all experts of a layer have the same "
            "adapters: name up_proj");
}

}  // namespace
}  // namespace kintsugi
