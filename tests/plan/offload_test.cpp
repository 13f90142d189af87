// Optimizer state and gradients in host memory: time, choice and limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/search.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::HasSubstr;

constexpr StateOffload kState{.on = true};
constexpr StateOffload kBoth{.on = true, .gradients = true};

// bench/README.md, "Offload on the same machine": llama-3b on an H200, four micro-batches of 2 x
// 4096 tokens, with updates on the device.
TEST(PlannedOffload, IsAsMeasuredOnAnH200) {
  const PlanJob job{.model = load_preset("llama-3b"), .length = 4096, .batch = 8};
  Planner planner(job, load_machine("h200"));
  const Layout layout{.micro_batch = 2};
  const double without = planner.timing(layout).step_s, tokens = 8 * 4096;
  EXPECT_NEAR(planner.timing(layout, kState).step_s - without, tokens / 18'736 - tokens / 32'605,
              0.04);
  EXPECT_NEAR(planner.timing(layout, kBoth).step_s - without, tokens / 10'881 - tokens / 32'605,
              0.15);
  const Evaluation state = planner.evaluate(layout, kState), both = planner.evaluate(layout, kBoth);
  constexpr double kGib = 1 << 30;
  EXPECT_NEAR(state.host_bytes / kGib, 35.91, 0.01);
  EXPECT_NEAR(both.host_bytes / kGib, 47.87, 0.01);
  EXPECT_NEAR((state.memory_bytes / 1e9 - planner.machine().gpu.own_gb) * 1e9 / kGib, 39.67, 0.5);
}

// Copies over a link of half the speed take twice as long; what overlaps is one forward.
TEST(PlannedOffload, CopiesTakeTheirBytes) {
  const PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  const auto seconds = [&](double gb_s, const StateOffload& offload, const Layout& layout) {
    Machine machine = load_machine("dgx-h100");
    machine.node.host_link_gb_s = gb_s;
    return Planner(job, machine).timing(layout, offload);
  };
  const double parameters = static_cast<double>(ParameterSet(job.model).elements());
  for (const auto& [layout, shards] :
       {std::pair{Layout{.dp = 8, .micro_batch = 2}, 1.0},
        {Layout{.dp = 8, .micro_batch = 2, .zero = 1}, 8.0},
        {Layout{.tp = 2, .dp = 4, .micro_batch = 2, .zero = 2, .sequence_parallel = true}, 8.0}}) {
    const double state = 12 * parameters / shards / 1e9;  // GB: master weights and two moments
    const double slow = seconds(0.5, kState, layout).offload_s,
                 slower = seconds(0.25, kState, layout).offload_s;
    EXPECT_NEAR((slower - slow) / (state / 0.25 - state / 0.5), 1, 0.01) << to_string(layout);
    EXPECT_LT(slow, state / 0.5) << "one forward hides some of it";
    // Gradients once per micro-batch, and once more to the device for the update.
    const double gradients = 4 * parameters / shards / 1e9;
    const double both =
        seconds(0.25, kBoth, layout).offload_s - seconds(0.5, kBoth, layout).offload_s;
    const double micro_batches = static_cast<double>(micro_batches_per_step(layout, job.batch));
    EXPECT_NEAR(both / ((state + (micro_batches + 1) * gradients) / 0.5), 1, 0.01)
        << to_string(layout);
  }
}

TEST(PlannedOffload, TheUpdateItselfIsTheSame) {
  const PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  Planner planner(job, load_machine("dgx-h100"));
  const Layout layout{.dp = 8, .micro_batch = 2, .zero = 1};
  const Evaluation without = planner.evaluate(layout), with = planner.evaluate(layout, kState);
  EXPECT_NEAR(with.optimizer_s / without.optimizer_s, 1, 0.1) << "more kernels, of 4M elements";
  EXPECT_NEAR(with.step_s - without.step_s, with.offload_s + with.optimizer_s - without.optimizer_s,
              1e-9);
  EXPECT_EQ(without.offload_s, 0);
  EXPECT_EQ(without.host_bytes, 0);
  EXPECT_LT(with.memory_bytes, without.memory_bytes);
  EXPECT_LT(with.tokens_per_s_per_gpu, without.tokens_per_s_per_gpu);
  EXPECT_EQ(to_string(with), to_string(layout) + " offload-optimizer");
}

// llama-8b in bf16 with state takes 18 bytes per parameter, 135 GiB; a GPU has 79.
struct TooLarge {
  PlanJob job{.model = load_preset("llama-8b"), .length = 4096, .batch = 8};
  Machine machine = load_machine("dgx-h100");
  SearchResult search(const std::string& offload, int gpus = 1) const {
    Planner planner(job, machine);
    return search_layouts(planner, {.gpus = gpus, .offload = offload});
  }
};

TEST(OffloadSearch, OnlyIfNothingFitsWithout) {
  TooLarge large;
  EXPECT_TRUE(large.search("none").best.empty());
  const SearchResult found = large.search("");
  ASSERT_FALSE(found.best.empty());
  for (const Evaluation& e : found.best) {
    EXPECT_TRUE(e.offload.on) << to_string(e);
    EXPECT_FALSE(e.offload.gradients) << "the state alone was enough: " << to_string(e);
    EXPECT_LE(e.memory_bytes, large.machine.gpu.memory_gb * 1e9);
  }
  for (const Evaluation& e : large.search("", 8).best) EXPECT_FALSE(e.offload.on) << to_string(e);
}

TEST(OffloadSearch, GradientsTooIfTheStateIsNotEnough) {
  TooLarge large;
  large.machine.gpu.memory_gb = 40;
  EXPECT_TRUE(large.search("optimizer").best.empty());
  const SearchResult found = large.search("");
  ASSERT_FALSE(found.best.empty());
  for (const Evaluation& e : found.best) EXPECT_TRUE(e.offload.on && e.offload.gradients);
}

TEST(OffloadSearch, AllAreTriedWhenAsked) {
  TooLarge large;
  const SearchResult none = large.search("none", 8), state = large.search("optimizer", 8),
                     both = large.search("gradients", 8), all = large.search("all", 8);
  EXPECT_EQ(all.layouts, none.layouts + state.layouts + both.layouts);
  EXPECT_EQ(all.fitting, none.fitting + state.fitting + both.fitting);
  EXPECT_EQ(state.layouts, none.layouts);
  EXPECT_LT(both.layouts, none.layouts) << "no zero-bubble schedules";
  EXPECT_GT(state.fitting, none.fitting);
  EXPECT_LT(state.smallest.memory_bytes, none.smallest.memory_bytes);
  EXPECT_LT(both.smallest.memory_bytes, state.smallest.memory_bytes);
  EXPECT_EQ(to_string(all.best.front()), to_string(none.best.front())) << "copies cost time";
  EXPECT_GT(state.best.front().step_s, none.best.front().step_s);
  for (const Evaluation& e : both.best)
    EXPECT_NE(e.layout.schedule, PipelineKind::ZeroBubbleH1) << to_string(e);
}

TEST(OffloadSearch, TheHostsMemoryIsALimit) {
  TooLarge large;
  large.machine.node.host_memory_gb = 100;  // 80 of them for 96.4 GB of state
  EXPECT_TRUE(large.search("").best.empty());
  large.machine.node.host_memory_gb = 125;
  EXPECT_FALSE(large.search("").best.empty());
  // On two GPUs of a node, without sharding each would need as much.
  large.machine.node.host_memory_gb = 130;
  for (const Evaluation& e : large.search("optimizer", 2).best)
    EXPECT_LE(2 * e.host_bytes, 0.8 * 130e9) << to_string(e);
}

TEST(OffloadSearch, NotWithoutAKnownLink) {
  TooLarge large;
  large.machine.node.host_link_gb_s = 0;
  EXPECT_TRUE(large.search("").best.empty());
}

TEST(OffloadSearch, TheLimitIsNamed) {
  TooLarge large;
  Planner planner(large.job, large.machine);
  const SearchLimits limits{.gpus = 1, .offload = "none"};
  const SearchResult result = search_layouts(planner, limits);
  EXPECT_THAT(why_nothing_fits(planner, limits, result, [&](int) { return large.job; }),
              HasSubstr("with --offload none"));
}

// ---- Muon

// Newton-Schulz on r x c, r <= c: each of five steps multiplies r x c by c x r, r x r by r x r and
// r x r by r x c, two FLOPs each.
double newton_schulz_flops(const ModelConfig& model) {
  const auto flops = [](double a, double b) {
    const double small = std::min(a, b), large = std::max(a, b);
    return 5 * (2 * 2 * small * small * large + 2 * small * small * small);
  };
  const double h = static_cast<double>(model.hidden_size),
               f = static_cast<double>(model.feed_forward_parts()),
               kv = static_cast<double>(model.kv_heads * model.head_dim);
  return static_cast<double>(model.layers) * (2 * flops(h, h) + 2 * flops(kv, h) + 3 * flops(f, h));
}

TEST(PlannedMuon, MatmulsOfTheUpdateAreCounted) {
  PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  job.optimizer.kind = OptimizerKind::Muon;
  const ModelLayers model(job.model);
  const StageContents whole{.layers = {static_cast<int>(job.model.layers)}};
  const auto flops = [&](int dp, int zero) {
    double sum = 0;
    for (const TracedOperation& matmul :
         trace_state(job, model, {.dp = dp, .zero = zero}, whole).step_matmuls)
      sum += matmul.flops;
    return sum;
  };
  EXPECT_NEAR(flops(1, 0) / newton_schulz_flops(job.model), 1, 1e-9);
  // The matrices are divided among the data ranks.
  EXPECT_NEAR(flops(8, 1) * 8 / newton_schulz_flops(job.model), 1, 0.2);
}

TEST(PlannedMuon, TimeIsThatOfMatmulsAndExchanges) {
  PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64};
  const Machine machine = load_machine("dgx-h100");
  const auto optimizer_s = [&](OptimizerKind kind, const Layout& layout, double gb_s) {
    job.optimizer.kind = kind;
    Machine linked = machine;
    linked.node.link_gb_s = gb_s;
    return Planner(job, linked).timing(layout).optimizer_s;
  };
  const Layout alone{.micro_batch = 1}, sharded{.dp = 8, .micro_batch = 1, .zero = 1};
  const double more =
      optimizer_s(OptimizerKind::Muon, alone, 370) - optimizer_s(OptimizerKind::AdamW, alone, 370);
  const double at_peak = newton_schulz_flops(job.model) / (machine.gpu.bf16_tflops * 1e12);
  EXPECT_GT(more, at_peak);
  EXPECT_LT(more, 3 * at_peak) << "matmuls reach at most 0.74 of the peak";
  // Directions go to the owners and back. AdamW exchanges nothing during the update.
  const auto exchange = [&](OptimizerKind kind) {
    return optimizer_s(kind, sharded, 10) - optimizer_s(kind, sharded, 20);
  };
  EXPECT_NEAR(exchange(OptimizerKind::AdamW), 0, 1e-9);
  const double matrices = static_cast<double>(job.model.layers) * 60.8e6;  // elements of a layer
  const double once = 2 * matrices / 8 * 7 / 8 / 1e9 * (1 / 10.0 - 1 / 20.0);  // bf16, s
  EXPECT_GT(exchange(OptimizerKind::Muon), once);
  EXPECT_LT(exchange(OptimizerKind::Muon), 6 * once) << "the rank that owns most decides";
}

}  // namespace
}  // namespace kintsugi
