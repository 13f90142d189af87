// Every joule of a run is charged once, like its seconds. Hand-made events, with sums by hand.
#include <gtest/gtest.h>

#include "report/goodput.h"

namespace kintsugi {
namespace {

using Kind = GoodputEvent::Kind;

LevelEnergy joules(double total, double steps, double checkpoint = 0, double validation = 0) {
  return {.total_j = total,
          .steps_j = steps,
          .checkpoint_j = checkpoint,
          .validation_j = validation,
          .covered_s = total / 1000};
}

EnergyTotals of_nodes(const LevelEnergy& energy) {
  EnergyTotals totals;
  totals[EnergyLevel::Node] = energy;
  return totals;
}

ByLevel<LevelAmount> spent(double node_j, double covered_s) {
  ByLevel<LevelAmount> all;
  all[EnergyLevel::Node] = {node_j, covered_s};
  return all;
}

ByLevel<LevelMeter> metered_by(const std::string& source, MeterKind kind) {
  ByLevel<LevelMeter> all;
  all[EnergyLevel::Node] = {source, kind, 2};
  return all;
}

// Killed after step 35, with the last record at step 30; continued from the checkpoint of step 20.
// Two nodes at 1 kW in all.
std::vector<GoodputEvent> interrupted_run() {
  return {{.kind = Kind::Start,
           .time_s = 1010,
           .launched_s = 1000,
           .nodes = 2,
           .meters = metered_by("estimate", MeterKind::Estimate),
           .energy = of_nodes(joules(5000, 0))},
          {.time_s = 1070,
           .step = 30,
           .tokens = 300,
           .steps_s = 60,
           .energy = of_nodes(joules(65000, 60000))},
          {.kind = Kind::Start,
           .time_s = 1110,
           .step = 20,
           .tokens = 200,
           .launched_s = 1100,
           .nodes = 2,
           .alive_s = 1080,
           .reached = 35,
           .reached_tokens = 350,
           .spent = spent(75000, 75),
           .meters = metered_by("pm_counters", MeterKind::Counter),
           .energy = of_nodes(joules(4000, 0))},
          {.kind = Kind::End,
           .time_s = 1180,
           .step = 50,
           .tokens = 500,
           .steps_s = 60,
           .checkpoint_s = 6,
           .validation_s = 3,
           .exposed_s = 15,
           .energy = of_nodes(joules(70000, 60000, 4000, 1500)),
           .state = "finished",
           .exit_code = 0}};
}

TEST(EnergyLedger, ChargesEveryJouleOfAllAttempts) {
  Goodput goodput;
  goodput.add(interrupted_run());
  ASSERT_EQ(goodput.attempts().size(), 2u);
  const GoodputAmounts &first = goodput.attempts()[0].joules[EnergyLevel::Node],
                       &second = goodput.attempts()[1].joules[EnergyLevel::Node];
  EXPECT_DOUBLE_EQ(first.startup, 5000);
  EXPECT_DOUBLE_EQ(first.productive, 60000 + 10000) << "steps 1-30, then 31-35 from the metrics";
  EXPECT_DOUBLE_EQ(first.recomputed, 0);
  EXPECT_DOUBLE_EQ(second.startup, 4000);
  EXPECT_DOUBLE_EQ(second.recomputed, 30000) << "steps 21-35 of 21-50";
  EXPECT_DOUBLE_EQ(second.productive, 30000);
  EXPECT_DOUBLE_EQ(second.exposed, 7500) << "a quarter of the time of the steps";
  EXPECT_DOUBLE_EQ(second.checkpoint, 4000);
  EXPECT_DOUBLE_EQ(second.validation, 1500);
  EXPECT_DOUBLE_EQ(second.other, 70000 - 4000 - 60000 - 4000 - 1500);
  EXPECT_DOUBLE_EQ(goodput.joules(EnergyLevel::Node).total(), 75000 + 70000) << "each joule once";
  EXPECT_EQ(goodput.joules(EnergyLevel::Gpu).total(), 0);
}

TEST(EnergyLedger, TheReportSeparatesTheLostPart) {
  Goodput goodput;
  goodput.add(interrupted_run());
  EnergyReport report;
  add_ledger(goodput, report);
  const auto node = [&](EnergyPhase phase) {
    return *report.phase(phase).joules[EnergyLevel::Node];
  };
  EXPECT_DOUBLE_EQ(node(EnergyPhase::Lost), 30000);
  EXPECT_DOUBLE_EQ(node(EnergyPhase::Communication), 7500);
  EXPECT_DOUBLE_EQ(node(EnergyPhase::Compute), 70000 + 22500);
  EXPECT_DOUBLE_EQ(node(EnergyPhase::Startup), 9000);
  EXPECT_DOUBLE_EQ(*report.total()[EnergyLevel::Node], 145000);
  EXPECT_FALSE(report.total()[EnergyLevel::Gpu]) << "not metered is not 0";
  EXPECT_EQ(report.steps, 50);
  EXPECT_EQ(report.tokens, 500);
  const LevelMeasurement& source = report.source(EnergyLevel::Node);
  EXPECT_DOUBLE_EQ(source.covered_s, 75 + 70) << "of the lost attempt too";
  EXPECT_DOUBLE_EQ(*report.node_watts(EnergyLevel::Node), 1000);
  EXPECT_EQ(source.source, "estimate, pm_counters");
  EXPECT_EQ(source.kind, MeterKind::Estimate) << "a sum with an estimate is an estimate";
  EXPECT_DOUBLE_EQ(report.seconds, 80 + 80);
  EXPECT_DOUBLE_EQ(report.node_seconds, 2 * 160);
  ASSERT_EQ(report.attempts.size(), 2u);
  EXPECT_EQ(report.attempts[0].state, "lost");
  EXPECT_DOUBLE_EQ(*report.attempts[1].lost[EnergyLevel::Node], 30000);
}

TEST(EnergyLedger, IsTheSameFromItsFile) {
  for (const GoodputEvent& event : interrupted_run())
    EXPECT_EQ(parse_goodput_line(to_json_line(event)), event);
}

// An attempt that ended before the step that an earlier one has reached.
TEST(EnergyLedger, CountsTheTokensOfTheFurthestStep) {
  std::vector<GoodputEvent> events = interrupted_run();
  events.back().step = 25;
  events.back().tokens = 250;
  Goodput goodput;
  goodput.add(events);
  EXPECT_EQ(goodput.furthest(), 35);
  EXPECT_EQ(goodput.trained_tokens(), 350);
}

// The levels that stand for a run: whole nodes only if they are metered most of the time.
TEST(EnergyLedger, OneMeteredNodeDoesNotStandForAll) {
  ByLevel<double> coverage;
  coverage[EnergyLevel::Node] = 1.0 / 22;
  coverage[EnergyLevel::Gpu] = 0.99;
  EXPECT_EQ(standing_level(coverage), EnergyLevel::Gpu);
  coverage[EnergyLevel::Node] = 0.95;
  EXPECT_EQ(standing_level(coverage), EnergyLevel::Node);
  EXPECT_FALSE(standing_level({}));
}

// A hostile or damaged ledger yields no negative or infinite energy.
TEST(EnergyLedger, IgnoresImpossibleValues) {
  const auto event = parse_goodput_line(
      R"({"event":"progress","time_s":1,"step":1,"energy":{"node":{"total_j":-5,"steps_j":1e300,)"
      R"("covered_s":"x"},"gpu":7,"cpu":{"total_j":3}},"nodes":-4})");
  ASSERT_TRUE(event);
  EXPECT_EQ(event->energy[EnergyLevel::Node], LevelEnergy{});
  EXPECT_EQ(event->energy[EnergyLevel::Gpu], LevelEnergy{});
  EXPECT_EQ(event->energy[EnergyLevel::Cpu].total_j, 3);
  EXPECT_EQ(event->nodes, 1);
}

}  // namespace
}  // namespace kintsugi
