#include "plan/search/search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>

#include "plan/costs/footprint.h"
#include "plan/search/scaling.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlanJob small_job() { return {.model = load_preset("llama-1b"), .length = 4096, .batch = 96}; }

// The search visits exactly the layouts that the engine accepts.
TEST(Search, LayoutsAreTheEngines) {
  const PlanJob job = small_job();
  const Machine machine = load_machine("dgx-h100");
  std::set<std::string> listed;
  int layouts = 0;
  for_each_layout(job, machine, {.gpus = 16}, [&](const Layout& layout) {
    ++layouts;
    EXPECT_EQ(layout.ranks(), 16);
    EXPECT_NO_THROW(fit_layout(layout, workload_of(job), 16)) << to_string(layout);
    EXPECT_TRUE(listed.insert(to_string(layout)).second) << to_string(layout) << " twice";
  });
  EXPECT_GT(layouts, 500);
  // Every plain layout that fits is found.
  for (int tp = 1; tp <= 16; ++tp)
    for (int pp = 1; pp <= 16; ++pp)
      for (int micro = 1; micro <= 64; micro *= 2) {
        Layout layout{.tp = tp, .pp = pp, .micro_batch = micro};
        if (16 % (tp * pp) != 0) continue;
        layout.dp = 16 / (tp * pp);
        layout.sequence_parallel = tp > 1;
        try {
          fit_layout(layout, workload_of(job), 16);
        } catch (const UserError&) {
          continue;
        }
        EXPECT_TRUE(listed.contains(to_string(layout))) << to_string(layout);
      }
}

PlanJob fp8_job() {
  PlanJob job = small_job();
  job.model.fp8.recipe = Fp8Recipe::Rowwise;
  return job;
}

TEST(PlanFp8, NeedsAGpuThatHasIt) {
  for (const char* name : {"dgx-a100", "frontier", "jean-zay"}) {
    const std::string error = user_error_of([&] { Planner(fp8_job(), load_machine(name)); });
    EXPECT_THAT(error, AllOf(HasSubstr(load_machine(name).name), HasSubstr("no fp8"),
                             HasSubstr(load_machine(name).gpu.name), Not(HasSubstr("\n"))));
  }
  EXPECT_NO_THROW(Planner(fp8_job(), load_machine("mi300x")));
}

TEST(PlanFp8, SequencesHaveMultiplesOf16Tokens) {
  PlanJob job = fp8_job();
  job.length = 1040;
  const Machine machine = load_machine("dgx-h100");
  int layouts = 0;
  for_each_layout(job, machine, {.gpus = 8}, [&](const Layout& layout) {
    ++layouts;
    EXPECT_EQ(layout.cp, 1) << to_string(layout);
  });
  EXPECT_GT(layouts, 0);
  job.length = 1000;
  Planner planner(job, machine);
  const SearchLimits limits{.gpus = 8, .micro = 2};
  const SearchResult result = search_layouts(planner, limits);
  EXPECT_EQ(result.layouts, 0);
  EXPECT_THAT(why_nothing_fits(planner, limits, result, [&](int) { return job; }),
              AllOf(HasSubstr("multiple of 16 tokens"), HasSubstr("1000")));
}

TEST(PlanFp8, MfuIsRelativeToTheRunsPrecision) {
  Planner planner(fp8_job(), load_machine("h200"));
  const Evaluation e = planner.timing({.micro_batch = 2});
  const double flops = training_flops_per_token(planner.job().model, 4096).causal();
  EXPECT_NEAR(e.mfu_causal, flops * e.tokens_per_s_per_gpu / 989.4e12, 1e-9);
}

TEST(PlanFp8, Texts) {
  PlanJob job = small_job();
  EXPECT_EQ(precision_word(job), "bf16");
  job = fp8_job();
  EXPECT_EQ(precision_word(job), "fp8");
  EXPECT_EQ(fp8_yaml(job.model.fp8), "{recipe: rowwise}");
  job.model.fp8 = {.recipe = Fp8Recipe::Tensorwise,
                   .wgrad = false,
                   .filter = {"head", "mlp.down"},
                   .fast_accumulation = FastAccumulation::None,
                   .power_of_two_scales = false,
                   .keep_weights = false,
                   .bf16_layers = {.first = 1, .last = 2},
                   .statistics_every = 0};
  EXPECT_EQ(fp8_yaml(job.model.fp8),
            "{recipe: tensorwise, wgrad: false, filter: [head, mlp.down], fast_accumulation: none, "
            "power_of_two_scales: false, keep_weights: false, bf16_layers: {first: 1, last: 2}, "
            "statistics_every: 0}");
  job.model.layers = 5;
  EXPECT_EQ(ModelLayers(job.model).kinds, (std::vector{0, 1, 1, 0, 0}));
}

TEST(Search, FindsTheBest) {
  Planner planner(small_job(), load_machine("dgx-h100"));
  const SearchLimits limits{.gpus = 8, .best = 5};
  const SearchResult result = search_layouts(planner, limits);
  ASSERT_EQ(result.best.size(), 5u);
  double best = INFINITY;
  std::int64_t fitting = 0;
  for_each_layout(planner.job(), planner.machine(), limits, [&](const Layout& layout) {
    const Evaluation e = planner.evaluate(layout);
    fitting += e.fits;
    if (e.fits) best = std::min(best, e.step_s);
  });
  EXPECT_EQ(result.best.front().step_s, best);
  EXPECT_EQ(result.fitting, fitting);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_GE(result.best[i].step_s, result.best[i - 1].step_s);
  for (const auto& miss : result.misses)
    EXPECT_TRUE(!miss.evaluation.fits || miss.evaluation.step_s >= best) << miss.reason;
  // Limits are respected.
  SearchLimits narrow{.gpus = 8, .tp = 2, .zero = 1, .recompute = "full"};
  for (const Evaluation& e : search_layouts(planner, narrow).best) {
    EXPECT_EQ(e.layout.tp, 2);
    EXPECT_EQ(e.layout.zero, 1);
    EXPECT_EQ(e.layout.recompute, Recompute::Full);
  }
}

// The terms of a step add up to the step time.
TEST(Planner, PartsAddUp) {
  Planner planner(small_job(), load_machine("dgx-a100"));
  for_each_layout(planner.job(), planner.machine(), {.gpus = 8}, [&](const Layout& layout) {
    const Evaluation e = planner.evaluate(layout);
    EXPECT_NEAR(e.ideal_s + e.bubble * e.step_s + e.exposed_s() + e.optimizer_s + e.other_s,
                e.step_s, 1e-9 * e.step_s)
        << to_string(layout);
    EXPECT_GT(e.ideal_s, 0);
    EXPECT_GE(e.bubble, 0);
    EXPECT_LT(e.mfu_causal, planner.machine().gpu.gemm_efficiency);
    EXPECT_LT(e.mfu_causal, e.mfu_full);
  });
}

// If the device never waits for the host, the operations of the slowest stage are its compute.
TEST(Planner, OperationsAddUpToTheCompute) {
  Planner planner(small_job(), load_machine("dgx-a100"), {.host_us = 0, .collective_host_us = 0});
  for_each_layout(planner.job(), planner.machine(), {.gpus = 8}, [&](const Layout& layout) {
    const Evaluation e = planner.timing(layout);
    EXPECT_NEAR(e.matmul_s + e.attention_s + e.memory_s, e.ideal_s, 1e-9 * e.step_s)
        << to_string(layout);
    EXPECT_GT(e.attention_s, 0);
    EXPECT_GT(e.memory_s, 0);
  });
}

// This engine on one H200, bench/README.md: tokens/s and the arena's GiB.
TEST(Planner, ThisEngineOnAnH200) {
  struct Measured {
    const char* preset;
    std::int64_t vocabulary, layers, micro, length;
    double tokens_per_s, gib;
  };
  for (const Measured& m : {Measured{"gpt2-124m", 50304, 12, 64, 1024, 605480, 22.30},
                            {"gpt2-1.5b", 50304, 48, 16, 1024, 54611, 64.96},
                            {"llama-1b", 128256, 16, 4, 4096, 67619, 41.02},
                            {"llama-8b", 128256, 8, 2, 4096, 39329, 57.05},
                            {"llama-3b", 128256, 28, 2, 4096, 25883, 74.40}}) {
    PlanJob job{.model = load_preset(m.preset), .length = m.length, .batch = m.micro};
    job.model.vocab_size = m.vocabulary;
    job.model.layers = m.layers;
    Planner planner(job, load_machine("h200"));
    const Layout layout{.micro_batch = m.micro};
    EXPECT_NEAR(planner.evaluate(layout).tokens_per_s_per_gpu / m.tokens_per_s, 1, 0.06)
        << m.preset;
    // The measured value includes the workspace of libraries, 0.1 to 0.6 GiB.
    const double gib = static_cast<double>(total(planner.memory(layout)[0])) / (1 << 30);
    EXPECT_LE(gib, m.gib) << m.preset;
    EXPECT_NEAR(gib, m.gib, 0.6) << m.preset;
  }
}

// Seed 001: tensor parallelism stays inside the node.
TEST(Seeds, FrontierChoosesTensorParallelismInTheNode) {
  struct Run {
    const char* preset;
    std::int64_t batch;
    int gpus, zero;
    const char* schedule;
  };
  for (const Run& run : {Run{"gpt-175b", 2560, 256, -1, ""}, {"gpt-1t", 3200, 1024, 1, "1f1b"}}) {
    PlanJob job{.model = load_preset(run.preset), .length = 2048, .batch = run.batch};
    Planner planner(job, load_machine("frontier"));
    const SearchResult result =
        search_layouts(planner, {.gpus = run.gpus, .zero = run.zero, .schedule = run.schedule});
    ASSERT_FALSE(result.best.empty()) << run.preset;
    EXPECT_LE(result.best.front().layout.tp, 8) << run.preset;
    EXPECT_GT(result.best.front().layout.tp, 1) << run.preset;
  }
}

// energy.csv: 20 tokens per parameter, 8 N FLOP per token, the printed rates and 539, 498 and 506 W
// per card (two dies).
TEST(Seeds, FrontierEnergy) {
  const auto joule = [](double parameters, double tflops, double card_w) {
    ComputeCalculus c{.parameters = parameters,
                      .tokens = chinchilla_tokens(parameters),
                      .gpus = 1024,
                      .peak_flops = 191.5e12,
                      .mfu = tflops / 191.5,
                      .flops_per_parameter = 8};
    return gpu_joule(solve(c), card_w / 2);
  };
  EXPECT_NEAR(joule(22e9, 73.5, 539) / 284e9, 1, 0.01);
  EXPECT_NEAR(joule(175e9, 69.2, 498) / 17.65e12, 1, 0.01);
  EXPECT_NEAR(joule(1e12, 61.2, 506) / 662e12, 1, 0.01);
}

// Seed 004: 30B parameters with 450B tokens on 88 H100 are 34 days and 14 tonnes.
TEST(Seeds, GptNl) {
  const Machine machine = load_machine("snellius-h100");
  const ComputeCalculus c = solve(
      {.parameters = 30e9, .tokens = 450e9, .gpus = 88, .peak_flops = 989.4e12, .mfu = 0.317});
  EXPECT_NEAR(c.days, 34, 0.3);
  const double kwh = gpu_joule(c, machine.gpu.busy_w()) / 3.6e6;
  const double tonnes = kwh * machine.facility.pue * machine.facility.kg_co2_per_kwh / 1000;
  EXPECT_NEAR(tonnes, 14, 0.7);
  // Each of the four is computed from the others.
  for (int open = 0; open < 4; ++open) {
    ComputeCalculus again = c;
    (open == 0   ? again.parameters
     : open == 1 ? again.tokens
     : open == 2 ? again.gpus
                 : again.days) = 0;
    again = solve(again);
    EXPECT_NEAR(again.parameters / c.parameters, 1, 1e-9);
    EXPECT_NEAR(again.tokens / c.tokens, 1, 1e-9);
    EXPECT_NEAR(again.gpus / c.gpus, 1, 1e-9);
    EXPECT_NEAR(again.days / c.days, 1, 1e-9);
  }
  const auto with_days = [](double days) {
    return user_error_of([&] {
      solve({.parameters = 1e9, .tokens = 1e12, .days = days, .peak_flops = 1e12, .mfu = 0.4});
    });
  };
  EXPECT_THAT(with_days(std::nan("")), testing::HasSubstr("is not a valid number"));
  EXPECT_THAT(with_days(INFINITY), testing::HasSubstr("is not a valid number"));
  EXPECT_THAT(user_error_of([] { solve({.parameters = 1e9, .peak_flops = 1e12, .mfu = 0.4}); }),
              testing::HasSubstr("give exactly three"));
}

// Seed 001: parameters, gradients and optimizer of 22B, 175B and 1T, 6 + 4 + 8 bytes each.
TEST(Seeds, StateOfFrontiersModels) {
  for (const auto& [preset, parameters] :
       {std::pair{"gpt-22b", 22e9}, {"gpt-175b", 175e9}, {"gpt-1t", 1e12}}) {
    const PlanJob job{.model = load_preset(preset), .length = 2048, .batch = 1};
    const StateTrace state =
        trace_state(job, job.model, {}, {.layers = {static_cast<int>(job.model.layers)}});
    const auto bytes = [&](Region region) {
      return static_cast<double>(state.memory[static_cast<std::size_t>(region)]);
    };
    EXPECT_NEAR(bytes(Region::Gradients) / (4 * parameters), 1, 0.05) << preset;
    EXPECT_NEAR((bytes(Region::Weights) + bytes(Region::Optimizer)) / (14 * parameters), 1, 0.05)
        << preset;
  }
}

TEST(Scaling, TablesAndPictures) {
  const Machine machine = load_machine("dgx-h100");
  const auto strong = scaling(small_job(), machine, {}, ScalingKind::Strong, {8, 16, 32});
  ASSERT_EQ(strong.size(), 3u);
  EXPECT_EQ(strong[2].batch, 96);
  EXPECT_EQ(strong[0].efficiency, 1);
  EXPECT_LE(strong[2].efficiency, strong[1].efficiency);
  const auto weak = scaling(small_job(), machine, {}, ScalingKind::Weak, {8, 16, 32});
  EXPECT_EQ(weak[2].batch, 384);
  EXPECT_GT(weak[2].efficiency, strong[2].efficiency);
  EXPECT_THAT(scaling_table(weak), testing::HasSubstr("efficiency"));
  const std::string svg = scaling_svg(weak, "a < b & c");
  EXPECT_THAT(svg, testing::AllOf(testing::StartsWith("<svg "), testing::EndsWith("</svg>\n"),
                                  testing::HasSubstr("a &lt; b &amp; c")));
}

TEST(Footprint, OfARun) {
  const PlanJob job = small_job();
  Machine machine = load_machine("dgx-h100");
  machine.facility = {.pue = 1.5, .kg_co2_per_kwh = 0.1, .eur_per_gpu_hour = 2};
  machine.storage_gb_s = 10;
  Evaluation e{.layout = {.dp = 8}};
  e.step_s = 3.6;
  e.gpu_joule = 3.6e6;   // 1 kWh
  e.node_joule = 7.2e6;  // 2 kWh
  const RunFootprint f = footprint_of(e, job, machine, 1000 * job.tokens() - 1);
  EXPECT_EQ(f.steps, 1000);
  EXPECT_NEAR(f.days, 3600.0 / 86400, 1e-12);
  EXPECT_NEAR(f.gpu_hours, 8, 1e-9);
  EXPECT_NEAR(f.energy.gpu_mwh, 1, 1e-9);
  EXPECT_NEAR(f.energy.node_mwh.value(), 2, 1e-9);
  EXPECT_NEAR(f.energy.facility_mwh.value(), 3, 1e-9);
  EXPECT_NEAR(f.energy.tonnes_co2.value(), 0.3, 1e-9);
  EXPECT_EQ(f.energy.missing, "");
  EXPECT_NEAR(f.euro.value(), 16, 1e-9);
  // bf16 weights, fp32 master and moments: 14 bytes of each of llama-1b's 1.236 billion.
  EXPECT_NEAR(f.checkpoint_gb, 14 * 1.2358, 0.01);
  EXPECT_NEAR(f.checkpoint_s.value(), f.checkpoint_gb / 10, 1e-9);
}

// Values that the machine description lacks are not counted, and the missing keys are named.
TEST(Footprint, KnowsOnlyWhatTheMachineSays) {
  Machine machine = load_machine("dgx-h100");
  machine.facility = {.pue = -1, .kg_co2_per_kwh = 0.1};
  const RunEnergy without_pue = energy_of(1, 0.5, machine);
  EXPECT_EQ(without_pue.node_mwh, 1.5);
  EXPECT_EQ(without_pue.facility_mwh, std::nullopt);
  EXPECT_EQ(without_pue.missing, "facility.pue");
  EXPECT_NEAR(without_pue.tonnes_co2.value(), 0.15, 1e-12);
  EXPECT_EQ(without_pue.co2_of, "nodes without PUE");
  machine.node.host_w = -1;
  const RunEnergy neither = energy_of(1, 0, machine);
  EXPECT_EQ(neither.node_mwh, std::nullopt);
  EXPECT_EQ(neither.missing, "node.host_w and facility.pue");
  EXPECT_EQ(neither.co2_of, "GPUs without PUE");
  machine.facility.pue = 2;
  const RunEnergy without_hosts = energy_of(1, 0, machine);
  EXPECT_EQ(without_hosts.facility_mwh, std::nullopt) << "the hosts' part of it is not known";
  EXPECT_NEAR(without_hosts.tonnes_co2.value(), 0.2, 1e-12);
  EXPECT_EQ(without_hosts.co2_of, "GPUs with PUE");
  EXPECT_THAT(to_yaml(machine), testing::Not(testing::HasSubstr("host_w")));
  EXPECT_LT(parse_machine(to_yaml(machine), "again").node.host_w, 0);
}

TEST(Search, FewestGpus) {
  PlanJob job{.model = load_preset("llama-70b"), .length = 8192, .batch = 64};
  const Machine machine = load_machine("dgx-h100");
  const auto job_on = [&](int) { return job; };
  const int enough = fewest_gpus(job_on, machine, {.gpus = 1});
  Planner planner(job, machine);
  EXPECT_GT(search_layouts(planner, {.gpus = enough}).fitting, 0);
  EXPECT_EQ(search_layouts(planner, {.gpus = enough / 2, .offload = "none"}).fitting, 0);
  // Fewer GPUs cannot hold 18 bytes of state per parameter.
  EXPECT_GE(enough * machine.gpu.memory_gb * 1e9, 18 * 70e9);
}

// For any given number of GPUs the proposal is a number of whole nodes, not a multiple of it.
TEST(Search, FewestGpusFromAnyNumber) {
  const PlanJob job{.model = load_preset("llama-70b"), .length = 8192, .batch = 96};
  Machine machine = load_machine("dgx-h100");
  machine.nodes = 5;
  int expected = 0;
  Planner planner(job, machine);
  for (int count = 40; count > 13; count -= 8)
    if (search_layouts(planner, {.gpus = count, .offload = "none", .best = 1}).fitting > 0)
      expected = count;
  ASSERT_GT(expected, 0);
  EXPECT_EQ(fewest_gpus([&](int) { return job; }, machine, {.gpus = 13}), expected);
  EXPECT_EQ(fewest_gpus([&](int) { return job; }, machine, {.gpus = 40}), 0);
}

// some_layout_fits agrees with the full search.
TEST(Search, SomeLayoutFitsIfOneDoes) {
  const PlanJob job{.model = load_preset("llama-8b"), .length = 8192, .batch = 48};
  int fitting = 0;
  for (const double memory_gb : {12.0, 20.0, 26.0, 32.0, 40.0, 64.0})
    for (const int gpus : {2, 6, 8})
      for (SearchLimits limits : {SearchLimits{},
                                  {.tp = 2},
                                  {.zero = 0},
                                  {.micro = 2, .zero = 1},
                                  {.pp = 2, .schedule = "interleaved"},
                                  {.recompute = "none"},
                                  {.offload = "optimizer"},
                                  {.offload = "gradients"},
                                  {.tp = 2, .offload = "all"}}) {
        limits.gpus = gpus;
        if (limits.offload.empty()) limits.offload = "none";
        Machine machine = load_machine("dgx-h100");
        machine.gpu.memory_gb = memory_gb;
        Planner planner(job, machine);
        const bool fits = search_layouts(planner, limits).fitting > 0;
        EXPECT_EQ(some_layout_fits(planner, limits), fits) << memory_gb << " " << gpus;
        fitting += fits;
      }
  EXPECT_GT(fitting, 10);
  EXPECT_LT(fitting, 130);
}

// Values given as limits are tried even if the search alone would skip them.
TEST(Search, TriesLimitsAsGiven) {
  const PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 84};
  Machine machine = load_machine("dgx-h100");
  machine.node.gpus = 4;
  const auto count = [&](const SearchLimits& limits) {
    int layouts = 0;
    for_each_layout(job, machine, limits, [&](const Layout& layout) {
      ++layouts;
      EXPECT_NO_THROW(fit_layout(layout, workload_of(job), limits.gpus)) << to_string(layout);
    });
    return layouts;
  };
  EXPECT_GT(count({.gpus = 16, .micro = 7}), 0);
  EXPECT_GT(count({.gpus = 16, .micro = 21}), 0);
  EXPECT_EQ(count({.gpus = 16, .micro = 5}), 0);
  EXPECT_GT(count({.gpus = 16, .tp = 16}), 0);
}

// Around a ring and, where heads divide, by Ulysses: of 32 heads and 8 key-value heads for one to
// 64 ranks, and of one head that RetNet does not have.
TEST(Search, TriesBothContextMethods) {
  PlanJob job{.model = load_preset("llama-8b"), .length = 131072, .batch = 64};
  const Machine machine = load_machine("dgx-h100");
  const auto tried = [&](SearchLimits limits) {
    std::set<std::string> all;
    limits.gpus = 64;
    for_each_layout(job, machine, limits, [&](const Layout& layout) {
      EXPECT_NO_THROW(fit_layout(layout, workload_of(job), 64)) << to_string(layout);
      if (layout.cp > 1)
        all.insert(fmt::format("tp{} cp{} {}", layout.tp, layout.cp, to_string(layout.context)));
    });
    return all;
  };
  const std::set<std::string> all = tried({});
  for (const char* given : {"tp1 cp32 ulysses", "tp1 cp64 ring", "tp4 cp8 ulysses", "tp2 cp2 ring"})
    EXPECT_TRUE(all.contains(given)) << given;
  for (const char* impossible : {"tp1 cp64 ulysses", "tp8 cp8 ulysses"})
    EXPECT_FALSE(all.contains(impossible)) << impossible;
  EXPECT_EQ(tried({.tp = 2, .cp = 4, .context = "ulysses"}),
            std::set<std::string>{"tp2 cp4 ulysses"});
  EXPECT_TRUE(tried({.cp = 64, .context = "ulysses"}).empty());
  job.model = load_preset("retnet-base");
  for (const std::string& one : tried({})) EXPECT_THAT(one, HasSubstr("ring"));
}

// Processor time of this thread, so that other work counts little.
double layouts_per_s(PlanJob job, const char* machine, const SearchLimits& limits) {
  const auto thread_s = [] {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  Planner planner(std::move(job), load_machine(machine));
  const double begin = thread_s();
  const std::int64_t layouts = search_layouts(planner, limits).layouts;
  return static_cast<double>(layouts) / (thread_s() - begin);
}

// Long pipelines with many micro-batches cost at most five times as much per layout as those of a
// model that needs none (measured: 2.6 times, and 4.2 beside other programs).
TEST(Search, LongPipelinesAreCheap) {
  const PlanJob large{.model = load_preset("gpt-175b"), .length = 2048, .batch = 10240};
  double least = 1e300;  // of three: other programs take parts of the caches
  for (int i = 0; i < 3; ++i)
    least = std::min(
        least, layouts_per_s(small_job(), "dgx-h100", {.gpus = 16}) /
                   layouts_per_s(large, "frontier", {.gpus = 1024, .schedule = "interleaved"}));
  EXPECT_LT(least, 5);
}

// The intervals of two stages, weighted with their days: 10 days ± 10 % and 30 days ± 50 % take at
// most 11 + 45 days.
TEST(Footprint, IntervalsOfStagesAreAdded) {
  RunFootprint total{.days = 10, .within = 1.1};
  total += RunFootprint{.days = 30, .within = 1.5};
  EXPECT_NEAR(total.days * total.within, 56, 1e-9);
  total = {};
  total += RunFootprint{};
  EXPECT_EQ(total.within, 1);
}

// Cost per billion tokens: at 3.6 EUR per hour and 1000 tokens/s a GPU takes a million seconds.
TEST(Scaling, Prices) {
  ScalingRow row{.gpus = 8, .batch = 4};
  row.evaluation.tokens_per_s_per_gpu = 1000;
  EXPECT_THAT(scaling_table({row}, 3.6),
              testing::AllOf(testing::HasSubstr("EUR/Btokens"), testing::HasSubstr(" 1000.00  ")));
  EXPECT_THAT(scaling_table({row}), testing::Not(testing::HasSubstr("EUR")));
}

}  // namespace
}  // namespace kintsugi
