// The power model of the planner.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config.h"
#include "plan/search/planner.h"
#include "plan/search/search.h"

namespace kintsugi {
namespace {

// Joules of a step with these watts while computing, waiting for GPUs and waiting for the host.
double joules(const PlanJob& job, Machine machine, const Layout& layout, double computing,
              double waiting, double idle) {
  machine.gpu.active_w = computing;
  machine.gpu.wait_w = waiting;
  machine.gpu.idle_w = idle;
  return Planner(job, machine).timing(layout).gpu_joule;
}

PlanJob energy_job() { return {.model = load_preset("llama-1b"), .length = 2048, .batch = 64}; }

// With 1 W in one kind of time and 0 W in the others, joules are the seconds of that kind.
TEST(PlannedEnergy, EachSecondHasItsPower) {
  const PlanJob job = energy_job();
  const Machine machine = load_machine("dgx-a100");
  for (const Layout& layout :
       {Layout{.dp = 16, .micro_batch = 1, .zero = 1},
        Layout{.tp = 4, .dp = 4, .micro_batch = 1, .sequence_parallel = true},
        Layout{.pp = 4, .dp = 4, .micro_batch = 1}}) {
    const Evaluation e = Planner(job, machine).timing(layout);
    const double gpus = 16, computing = joules(job, machine, layout, 1, 0, 0) / gpus;
    const double not_idle = joules(job, machine, layout, 1, 1, 0) / gpus;
    EXPECT_NEAR(joules(job, machine, layout, 1, 1, 1), gpus * e.step_s, 1e-9 * gpus * e.step_s);
    EXPECT_NEAR(not_idle, e.step_s - e.other_s, 1e-9) << "logging and late data: the host";
    if (layout.pp == 1)
      EXPECT_NEAR(computing, e.ideal_s + e.optimizer_s, 1e-9);
    else
      EXPECT_LT(computing, e.ideal_s + e.optimizer_s) << "other stages wait for the slowest";
    EXPECT_GE(not_idle - computing, e.exposed_s() + e.bubble * e.step_s - 1e-9)
        << "communication and bubbles are not computing";
    // 300, 200 and 50 W are the sum of the three kinds.
    EXPECT_NEAR(joules(job, machine, layout, 300, 200, 50) / gpus,
                300 * computing + 200 * (not_idle - computing) + 50 * e.other_s, 1e-6);
  }
}

TEST(PlannedEnergy, HostsRunAllTheTime) {
  Machine machine = load_machine("dgx-a100");
  machine.node.host_w = 1000;
  const Layout layout{.dp = 16, .micro_batch = 1, .zero = 1};
  const Evaluation e = Planner(energy_job(), machine).timing(layout);
  EXPECT_NEAR(e.node_joule - e.gpu_joule, 2 * 1000 * e.step_s, 1e-6) << "two nodes of 8 GPUs";
}

// GPUs that use nothing while they wait: the energy is that of the computation. Over slow links,
// the fastest layout recomputes so that it communicates less. The one that needs least energy does
// not, however long it waits.
TEST(PlannedEnergy, OrderCanDifferFromThatOfTime) {
  const Machine machine = parse_machine(
      "name: slow links\n"
      "gpu: {bf16_tflops: 312, memory_gb: 16, memory_gb_s: 2039, tdp_w: 400, wait_w: 0, idle_w: "
      "0}\n"
      "node: {gpus: 8, link_gb_s: 2, host_w: 0}\n",
      "slow.yaml");
  Planner planner(energy_job(), machine);
  const SearchResult by_time = search_layouts(planner, {.gpus = 8});
  const SearchResult by_energy = search_layouts(planner, {.gpus = 8, .rank_by = RankBy::Energy});
  const Evaluation &fast = by_time.best.front(), &frugal = by_energy.best.front();
  EXPECT_EQ(fast.layout.recompute, Recompute::Full);
  EXPECT_NE(frugal.layout.recompute, Recompute::Full);
  EXPECT_LT(fast.step_s, frugal.step_s);
  EXPECT_LT(frugal.node_joule, fast.node_joule);
  for (const Evaluation& e : by_time.best) EXPECT_LE(frugal.node_joule, e.node_joule);
  for (std::size_t i = 1; i < by_energy.best.size(); ++i)
    EXPECT_LE(by_energy.best[i - 1].node_joule, by_energy.best[i].node_joule);
}

// energy.csv: watts per card (two dies) of arXiv 2312.12705. wait_w of this machine was fitted to
// these two rows: this guards the fit and does not verify the model.
TEST(PlannedEnergy, FrontierIsAsFitted) {
  const auto watts = [](const char* model, std::int64_t batch, const Layout& layout) {
    const PlanJob job{.model = load_preset(model), .length = 2048, .batch = batch};
    const Evaluation e = Planner(job, load_machine("frontier")).timing(layout);
    return 2 * e.gpu_joule / e.step_s / layout.ranks();
  };
  Layout layout{.tp = 4, .pp = 16, .dp = 16, .micro_batch = 1, .zero = 1};
  layout.recompute = Recompute::Full;
  layout.sequence_parallel = true;
  EXPECT_NEAR(watts("gpt-175b", 10240, layout) / 498, 1, 0.03);
  layout.tp = 8;
  layout.pp = 64;
  layout.dp = 6;
  EXPECT_NEAR(watts("gpt-1t", 9600, layout) / 506, 1, 0.03);
}

}  // namespace
}  // namespace kintsugi
