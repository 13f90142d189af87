#include "parallel/layout.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ModelConfig model() {
  ModelConfig config{.vocab_size = 1000,
                     .hidden_size = 96,
                     .layers = 12,
                     .heads = 12,
                     .kv_heads = 6,
                     .max_positions = 64,
                     .rope_scaling = {}};
  config.complete_and_check();
  return config;
}

// A layout with dp to be filled in, and the workload.
struct Asked {
  Layout layout = {};
  std::int64_t batch = 1, length = 1;
};

Layout fitted(Asked asked, int ranks, const ModelConfig& config = model()) {
  if (asked.layout.dp == 1) asked.layout.dp = 0;
  return fit_layout(asked.layout, {config, asked.batch, asked.length}, ranks);
}
Grid fit(const Asked& asked, int ranks) { return grid_of(fitted(asked, ranks), model()); }

std::string refusal(const Asked& asked, int ranks) {
  return user_error_of([&] { fitted(asked, ranks); });
}

TEST(FitLayout, DataRanksFillTheWorld) {
  EXPECT_EQ(fit({.batch = 16}, 8), (Grid{.dp = 8, .shard_group = 1}));
  EXPECT_EQ(fit({.layout = {.micro_batch = 2, .zero = 2}, .batch = 16}, 8), (Grid{.dp = 8}));
  EXPECT_EQ(fit({.layout = {.dp = 4, .zero = 3, .shard_group = 2}, .batch = 16}, 4),
            (Grid{.dp = 4, .shard_group = 2}));
  EXPECT_EQ(fit({.layout = {.tp = 2, .pp = 3}, .batch = 4}, 12),
            (Grid{.tp = 2, .dp = 2, .pp = 3, .shard_group = 1}));
}

ModelConfig mixture() {
  ModelConfig config = model();
  config.family = Family::Mixtral;
  config.experts = ExpertsConfig{.count = 12, .chosen = 2};
  config.complete_and_check();
  return config;
}

TEST(FitLayout, SpreadsExpertsOverTensorAndDataRanks) {
  const auto grid = [](const Asked& asked, int ranks) {
    return grid_of(fitted(asked, ranks, mixture()), mixture());
  };
  EXPECT_EQ(grid({.layout = {.tp = 2}, .batch = 4}, 8).experts, 1);
  EXPECT_EQ(grid({.layout = {.tp = 2, .ep = 2}, .batch = 4}, 8).experts, 1);
  EXPECT_EQ(grid({.layout = {.tp = 2, .zero = 1, .ep = 4}, .batch = 4}, 8),
            (Grid{.tp = 2, .dp = 4, .experts = 2}));
  EXPECT_EQ(grid({.layout = {.cp = 2, .ep = 4}, .batch = 4, .length = 8}, 8).experts, 4);
  const auto error = [](const Asked& asked, int ranks) {
    return user_error_of([&] { fitted(asked, ranks, mixture()); });
  };
  EXPECT_THAT(error({.layout = {.ep = 8}, .batch = 8}, 8),
              HasSubstr("layout.ep is 8, which does not divide the model's 12 experts: use 4"));
  EXPECT_THAT(error({.layout = {.tp = 2, .ep = 3}, .batch = 4}, 8),
              HasSubstr("layout.ep is 3, but experts are on 2 tensor ranks times a divisor of 4 "
                        "data ranks: use 2 or 4"));
  EXPECT_THAT(error({.layout = {.ep = 3}, .batch = 4}, 4),
              HasSubstr("experts are on 1 tensor rank "));
  EXPECT_THAT(error({.layout = {.ep = 12}, .batch = 8}, 8), HasSubstr("use 4"))
      << "8 ranks, and 12 experts";
  EXPECT_THAT(error({.layout = {.zero = 1, .shard_group = 2, .ep = 3}, .batch = 12}, 12),
              HasSubstr("one must divide the other"));
  EXPECT_THAT(error({.layout = {.dispatch = Dispatch::AllToAll}, .batch = 8}, 8),
              HasSubstr("raise layout.ep or remove it"));
  EXPECT_THAT(refusal({.layout = {.ep = 2}, .batch = 8}, 8),
              HasSubstr("layout.ep is 2, but the model has no experts"));
}

TEST(FitLayout, NamesTheNearestChoices) {
  EXPECT_THAT(
      refusal({.layout = {.dp = 4}, .batch = 16}, 8),
      HasSubstr("layout.dp is 4, but 8 ranks make it 8: set it to 8 or auto, or start 4 ranks"));
  EXPECT_THAT(
      refusal({.batch = 16}, 3),
      HasSubstr("batch.global is 16, which is not a multiple of 3 data ranks: use 15 or 18, "
                "or start 2 or 4 ranks"));
  EXPECT_THAT(refusal({.layout = {.micro_batch = 2}, .batch = 2}, 4),
              HasSubstr("use 8, or start 2 ranks"));
  EXPECT_THAT(refusal({.layout = {.micro_batch = 4}, .batch = 24}, 4),
              HasSubstr("batch.micro is 4, which does not divide the 6 sequences per data rank "
                        "(batch.global 24 / dp 4): use batch.micro 3 or 6"));
  EXPECT_THAT(refusal({.layout = {.zero = 1, .shard_group = 3}, .batch = 16}, 8),
              HasSubstr("layout.shard_group is 3, which does not divide 8 data ranks: use 2 or 4"));
  EXPECT_THAT(refusal({.layout = {.tp = 3}, .batch = 16}, 8),
              HasSubstr("does not divide 8 ranks: use 2 or 4"));
  EXPECT_THAT(refusal({.layout = {.tp = 2}, .batch = 16}, 1),
              AllOf(HasSubstr("needs 2 ranks, and there is 1: start 2"),
                    HasSubstr("mpirun -np 2 kintsugi train"), HasSubstr("srun -n 2")));
  EXPECT_THAT(refusal({.layout = {.tp = 2, .pp = 4}, .batch = 16}, 4), HasSubstr("mpirun -np 8"));
}

// The model has 12 heads, 6 key-value heads, 384 MLP columns and 12 layers.
TEST(FitLayout, TensorRanksShareHeadsAndColumns) {
  EXPECT_EQ(fit({.layout = {.tp = 6}}, 6), (Grid{.tp = 6, .shard_group = 1}));
  EXPECT_EQ(fit({.layout = {.tp = 12}}, 12), (Grid{.tp = 12, .shard_group = 1, .kv_copies = 2}));
  EXPECT_EQ(fit({.layout = {.tp = 3, .sequence_parallel = true}, .length = 33}, 3),
            (Grid{.tp = 3, .shard_group = 1}));
  EXPECT_THAT(refusal({.layout = {.tp = 8}}, 8),
              HasSubstr("layout.tp is 8, which must divide the model's 12 heads and 384 MLP "
                        "columns: use 6 or 12"));
  EXPECT_THAT(refusal({.layout = {.tp = 24}}, 24), HasSubstr("MLP columns: use 12"));
  EXPECT_THAT(refusal({.layout = {.tp = 4}}, 4),
              HasSubstr("layout.tp is 4, and the model has 6 key-value "
                        "heads: one must divide the other"));
  EXPECT_THAT(
      refusal({.layout = {.sequence_parallel = true}}, 1),
      HasSubstr("layout.sequence_parallel splits rows over the tp ranks, but layout.tp is 1"));
  EXPECT_THAT(refusal({.layout = {.tp = 2, .sequence_parallel = true}, .length = 33}, 2),
              HasSubstr("data.sequence_length 33 is not a multiple of layout.tp 2"));
  EXPECT_THAT(refusal({.layout = {.tp = 3, .cp = 2, .sequence_parallel = true}, .length = 40}, 6),
              HasSubstr("data.sequence_length 40 / cp 2 is not a multiple of layout.tp 3"));
}

// Two rows each for six ranks: the fifth has one and the last none.
TEST(FitLayout, EveryTensorRankHasSomeOfTheVocabulary) {
  ModelConfig config = model();
  config.vocab_size = 9;
  const Asked six{.layout = {.tp = 6}};
  EXPECT_THAT(user_error_of([&] { fitted(six, 6, config); }),
              HasSubstr("layout.tp is 6, too many for a vocabulary of 9: the last rank would have "
                        "no tokens"));
  config.vocab_size = 11;
  EXPECT_EQ(fitted(six, 6, config).tp, 6);
}

TEST(FitLayout, ContextRanksSplitSequencesIntoPairsOfChunks) {
  EXPECT_EQ(fit({.layout = {.cp = 3}, .batch = 2, .length = 36}, 6),
            (Grid{.cp = 3, .dp = 2, .shard_group = 1}));
  EXPECT_THAT(
      refusal({.layout = {.cp = 3}, .length = 32}, 3),
      HasSubstr("data.sequence_length is 32, but layout.cp 3 splits it into 6 equal chunks: "
                "use 30 or 36"));
  EXPECT_THAT(refusal({.layout = {.cp = 4}, .length = 4}, 4),
              HasSubstr("into 8 equal chunks: use 8"));
}

TEST(FitLayout, UlyssesSharesHeads) {
  constexpr auto kUlysses = ContextMethod::Ulysses;
  EXPECT_EQ(fit({.layout = {.cp = 3, .context = kUlysses}, .length = 9}, 3),
            (Grid{.cp = 3, .shard_group = 1}));
  EXPECT_EQ(fit({.layout = {.tp = 2, .cp = 6, .context = kUlysses}, .length = 6}, 12),
            (Grid{.tp = 2, .cp = 6, .shard_group = 1}))
      << "two ranks have the same key-value head";
  EXPECT_THAT(refusal({.layout = {.cp = 3, .context = kUlysses}, .length = 32}, 3),
              HasSubstr("layout.cp 3 splits it into 3 equal chunks: use 30 or 33"));
  EXPECT_THAT(refusal({.layout = {.context = kUlysses}}, 1),
              HasSubstr("layout.context is ulysses, but layout.cp is 1: raise cp or remove it"));
  EXPECT_THAT(refusal({.layout = {.tp = 2, .cp = 4, .context = kUlysses}, .length = 8}, 8),
              HasSubstr("layout.cp is 4, which must divide the 6 heads of a tensor rank with "
                        "ulysses: use 3 or 6"));
  EXPECT_THAT(refusal({.layout = {.cp = 4, .context = kUlysses}, .length = 8}, 4),
              HasSubstr("layout.cp is 4, and a tensor rank has 6 key-value heads: with ulysses one "
                        "must divide the other"));
  ModelConfig retention = model();
  retention.family = Family::Retnet;
  retention.kv_heads = 0;
  retention.value_size = 192;
  retention.complete_and_check();
  EXPECT_THAT(user_error_of([&] {
                fitted({.layout = {.cp = 2, .context = kUlysses}, .length = 8}, 2, retention);
              }),
              HasSubstr("family retnet has retention: use ring"));
}

TEST(FitLayout, PipelinesFollowTheirSchedules) {
  constexpr auto kInterleaved = PipelineKind::Interleaved;
  EXPECT_EQ(fit({.layout = {.pp = 2, .chunks = 3, .schedule = kInterleaved}, .batch = 4}, 2),
            (Grid{.pp = 2, .shard_group = 1}));
  EXPECT_EQ(fit({.layout = {.pp = 3, .split = {2, 7, 3}}, .batch = 4}, 3),
            (Grid{.pp = 3, .shard_group = 1}));
  EXPECT_THAT(refusal({.layout = {.chunks = 2, .schedule = kInterleaved}}, 1),
              HasSubstr("layout.chunks is 2, but layout.pp is 1: there is no pipeline"));
  EXPECT_THAT(refusal({.layout = {.pp = 2, .chunks = 2}, .batch = 4}, 2),
              HasSubstr("layout.schedule 1f1b: chunks is 2, but 1f1b has one per rank"));
  EXPECT_THAT(refusal({.layout = {.pp = 2, .schedule = kInterleaved}, .batch = 4}, 2),
              HasSubstr("layout.schedule interleaved: chunks is 1"));
  EXPECT_THAT(refusal({.layout = {.pp = 2, .chunks = 2, .schedule = kInterleaved, .micro_batch = 2},
                       .batch = 20},
                      4),
              HasSubstr("layout.schedule interleaved: an interleaved schedule needs a multiple of "
                        "2 micro-batches (the stages), not 5; the nearest are 4 and 6"));
  EXPECT_THAT(refusal({.layout = {.pp = 2, .split = {5, 6}}, .batch = 4}, 2),
              HasSubstr("layout.split is 5,6: it must have 2 numbers (pp × chunks) of at least "
                        "1 with the sum 12 (layers)"));
  EXPECT_THAT(refusal({.layout = {.pp = 3, .split = {6, 6}}, .batch = 4}, 3),
              HasSubstr("must have 3 numbers"));
  EXPECT_THAT(
      refusal({.layout = {.pp = 13}, .batch = 4}, 13),
      HasSubstr("12 layers cannot be split into 13 pipeline chunks: use fewer stages or chunks"));
}

TEST(FitLayout, EveryBatchOfARampDivides) {
  const ModelConfig config = model();
  const auto refused = [&](const Layout& layout, std::int64_t start, std::int64_t increment,
                           int ranks) {
    return user_error_of([&] { fit_layout(layout, {config, 64, 8, start, increment}, ranks); });
  };
  const Layout data{.dp = 0, .micro_batch = 2};
  EXPECT_EQ(fit_layout(data, {config, 64, 8, 16, 8}, 4).dp, 4);
  EXPECT_EQ(refused(data, 20, 4, 4),
            "batch.ramp.start is 20, which is not a multiple of 8 (dp 4 × batch.micro 2): use 16 "
            "or 24");
  EXPECT_EQ(refused(data, 16, 4, 4),
            "batch.ramp.increment is 4, which is not a multiple of 8 (dp 4 × batch.micro 2): use "
            "8");
  const Layout interleaved{
      .pp = 4, .dp = 0, .chunks = 3, .schedule = PipelineKind::Interleaved, .micro_batch = 2};
  EXPECT_EQ(fit_layout(interleaved, {config, 64, 8, 16, 8}, 4).pp, 4);
  EXPECT_EQ(refused(interleaved, 16, 4, 4),
            "layout.schedule interleaved: a step of 20 sequences: an interleaved schedule needs a "
            "multiple of 4 micro-batches (the stages), not 10; the nearest are 8 and 12");
  EXPECT_THAT(refused(interleaved, 4, 4, 4),
              HasSubstr("a step of 4 sequences: an interleaved schedule needs"));
  // Other schedules take any number.
  EXPECT_EQ(fit_layout({.pp = 4, .dp = 0, .micro_batch = 2}, {config, 64, 8, 2, 2}, 4).pp, 4);
}

TEST(FitLayout, ShardsRunOverContextAndDataRanks) {
  EXPECT_EQ(fit({.layout = {.cp = 2, .zero = 1, .shard_group = 4}, .batch = 4, .length = 8}, 8),
            (Grid{.cp = 2, .dp = 4, .shard_group = 4}));
  EXPECT_THAT(
      refusal({.layout = {.cp = 2, .zero = 1, .shard_group = 4}, .batch = 3, .length = 8}, 6),
      HasSubstr("layout.shard_group is 4, which does not divide 6 data ranks (cp × dp): "
                "use 3 or 6"));
  EXPECT_THAT(refusal({.layout = {.shard_group = 2}, .batch = 4}, 4),
              HasSubstr("layout.shard_group is 2, but layout.zero 0 shards nothing"));
}

// ---- choose_layout

const ModelConfig& large_model() {
  static const ModelConfig large = [] {
    ModelConfig config = model();
    config.heads = config.kv_heads = 16;
    config.layers = 16;
    return config;
  }();
  return large;
}

Workload open_work() { return {large_model(), 64, 32}; }

// One unit of weights and gradients and two of state, sharded by tp x pp, the state also by ZeRO.
double memory_of(const Layout& l) {
  return (1.0 + 2.0 / (l.zero > 0 ? l.cp * l.dp : 1)) / (l.tp * l.pp);
}

Layout choose(double memory, int ranks, int node) {
  return choose_layout({.dp = 0}, open_work(), ranks, node,
                       [&](const Layout& l) { return memory_of(l) <= memory; });
}

TEST(ChooseLayout, ShardsAsLittleAsPossible) {
  const Layout ample = choose(3.0, 16, 8);
  EXPECT_EQ(ample.tp, 1);
  EXPECT_EQ(ample.pp, 1);
  EXPECT_EQ(ample.zero, 0);
  EXPECT_FALSE(ample.sequence_parallel);
  const Layout shared = choose(1.2, 16, 8);  // 1 + 2 / 16
  EXPECT_EQ(shared.tp * shared.pp, 1);
  EXPECT_EQ(shared.zero, 1);
  const Layout half = choose(0.65, 16, 8);  // (1 + 2 / 8) / 2
  EXPECT_EQ(half.tp, 2) << "matrices before layers";
  EXPECT_EQ(half.pp, 1);
  EXPECT_EQ(half.zero, 1);
  EXPECT_TRUE(half.sequence_parallel);
}

TEST(ChooseLayout, MatricesStayInsideANode) {
  for (const int node : {1, 2, 4, 8}) {
    const Layout eighth = choose(3.0 / 8, 16, node);
    EXPECT_LE(eighth.tp, node);
    EXPECT_EQ(node % eighth.tp, 0);
  }
  const Layout pairs = choose(0.19, 16, 2);  // 3 / 16 with everything sharded
  EXPECT_EQ(pairs.tp, 2);
  EXPECT_EQ(pairs.pp, 8);
}

// Compares with all layouts: the chosen one fits, and none with a smaller tp x pp does.
TEST(ChooseLayout, NoSmallerLayoutFits) {
  for (const int ranks : {1, 4, 8, 16})
    for (const int node : {1, 4, 8})
      for (const double memory : {4.0, 2.0, 1.3, 1.0, 0.7, 0.5, 0.3, 0.2}) {
        bool any = false;
        std::int64_t least = ranks + 1, stages = 0;
        for (int tp = 1; tp <= node; ++tp)
          for (int pp = 1; tp * pp <= ranks; ++pp) {
            const bool even = node % tp == 0 && ranks % (tp * pp) == 0 && 16 % tp == 0 && pp <= 16;
            const double state = 2.0 / (ranks / (tp * pp));
            if (!even || (1.0 + state) / (tp * pp) > memory) continue;
            any = true;
            if (tp * pp < least || (tp * pp == least && pp < stages)) {
              least = tp * pp;
              stages = pp;
            }
          }
        SCOPED_TRACE(testing::Message() << ranks << " ranks, nodes of " << node << ", " << memory);
        if (!any) {
          EXPECT_THAT(
              user_error_of([&] { choose(memory, ranks, node); }),
              HasSubstr(fmt::format("layout auto: no layout of {} ranks fits this model into "
                                    "their memory: start more ranks",
                                    ranks)));
          continue;
        }
        const Layout chosen = choose(memory, ranks, node);
        EXPECT_EQ(chosen.tp * chosen.pp, least);
        EXPECT_EQ(chosen.pp, stages);
        EXPECT_EQ(chosen.dp, 0) << "still to be filled in";
        EXPECT_LE(memory_of(fit_layout(chosen, open_work(), ranks)), memory);
      }
}

// Sequence parallelism is chosen only if the rows divide evenly.
TEST(ChooseLayout, SequencesThatDoNotDivideStayWhole) {
  Workload work = open_work();
  work.length = 33;
  const Layout chosen =
      choose_layout({.dp = 0}, work, 4, 4, [](const Layout& l) { return l.tp >= 2; });
  EXPECT_EQ(chosen.tp, 2);
  EXPECT_FALSE(chosen.sequence_parallel);
}

TEST(ChooseLayout, SaysWhyThereIsNone) {
  const Workload five{large_model(), 5, 32};
  const Layout layout{.dp = 0, .micro_batch = 3};
  const auto always = [](const Layout&) { return true; };
  EXPECT_THAT(user_error_of([&] { choose_layout(layout, five, 2, 2, always); }),
              HasSubstr("layout auto: no layout of 2 ranks works: batch.global is 5"));
}

// ---- other functions of a layout

TEST(Layout, SaysItsMicroBatches) {
  EXPECT_EQ(micro_batches_per_step({.dp = 4, .micro_batch = 2}, 48), 6);
  EXPECT_EQ(micro_batches_per_step({}, 3), 3);
}

TEST(Layout, IsShownInAFewWords) {
  EXPECT_EQ(to_string(Layout{}), "tp1 pp1 dp1 micro1 zero0");
  EXPECT_EQ(to_string(Layout{.tp = 2,
                             .cp = 4,
                             .pp = 2,
                             .split = {5, 7},
                             .zero = 1,
                             .shard_group = 2,
                             .sequence_parallel = true,
                             .recompute = Recompute::Full,
                             .recompute_every = 2}),
            "tp2 pp2 dp1 micro1 cp4 1f1b split5,7 zero1/2 sp recompute-full/2");
}

}  // namespace
}  // namespace kintsugi
