// The meters of a node by an injected clock: levels, failures, and the check of a counter.
#include "energy/node_meters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/error.h"

namespace kintsugi {
namespace {

// Counts joules at a constant power since time 0, and fails on demand.
class SteadyMeter : public Meter {
 public:
  struct State {
    double now_s = 0, watts = 100, counted_w = 100;
    double period_s = 0;  // of a counter that moves in steps
    std::atomic<bool> fails = false, hangs = false;
  };
  SteadyMeter(MeterIdentity identity, std::shared_ptr<State> state)
      : Meter(std::move(identity)), state_(std::move(state)) {}
  MeterReading read() override {
    if (state_->fails) failure("the meter is gone");
    while (state_->hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double period_s = state_->period_s;
    const double counted_s =
        period_s > 0 ? period_s * std::floor(state_->now_s / period_s) : state_->now_s;
    return {.joules = state_->counted_w * counted_s, .watts = state_->watts};
  }

 private:
  std::shared_ptr<State> state_;
};

struct TwoGpus {
  std::shared_ptr<SteadyMeter::State> first = std::make_shared<SteadyMeter::State>(),
                                      second = std::make_shared<SteadyMeter::State>();
  NodeMeters meters = [this] {
    FoundMeters found;
    for (const auto& [scope, state] : {std::pair("gpu0", first), {"gpu1", second}})
      found.meters.push_back(std::make_unique<SteadyMeter>(
          MeterIdentity{.source = "nvml", .scope = scope, .level = EnergyLevel::Gpu}, state));
    ByLevel<std::vector<std::size_t>> used;
    used[EnergyLevel::Gpu] = {0, 1};
    return NodeMeters(std::move(found), std::move(used));
  }();

  void sample(double now_s) {
    first->now_s = second->now_s = now_s;
    meters.sample([now_s] { return now_s; });
  }
};

TEST(NodeMeters, AddsTheGpusOfANode) {
  TwoGpus node;
  node.second->watts = node.second->counted_w = 300;
  for (int i = 0; i <= 10; ++i) node.sample(i);
  const LevelAmount gpu = node.meters.amounts(10, 1)[EnergyLevel::Gpu];
  EXPECT_DOUBLE_EQ(gpu.joules, 10 * (100 + 300));
  EXPECT_DOUBLE_EQ(gpu.covered_s, 10);
  EXPECT_TRUE(node.meters.metered(EnergyLevel::Gpu));
  EXPECT_FALSE(node.meters.metered(EnergyLevel::Node));
  EXPECT_EQ(node.meters.amounts(10, 1)[EnergyLevel::Node].covered_s, 0);
}

TEST(NodeMeters, GoesOnAtTheLastPowerForAShortTime) {
  TwoGpus node;
  for (int i = 0; i <= 4; ++i) node.sample(i);
  EXPECT_DOUBLE_EQ(node.meters.amounts(4.5, 1)[EnergyLevel::Gpu].joules, 2 * 450);
  EXPECT_DOUBLE_EQ(node.meters.amounts(4.5, 1)[EnergyLevel::Gpu].covered_s, 4.5);
  EXPECT_DOUBLE_EQ(node.meters.amounts(9, 1)[EnergyLevel::Gpu].joules, 2 * 400) << "not guessed";
}

TEST(NodeMeters, ADeadMeterCoversLessTime) {
  TwoGpus node;
  for (int i = 0; i <= 4; ++i) node.sample(i);
  node.second->fails = true;
  for (int i = 5; i <= 8; ++i) node.sample(i);
  const LevelAmount gpu = node.meters.amounts(8, 1)[EnergyLevel::Gpu];
  EXPECT_DOUBLE_EQ(gpu.joules, 800 + 400);
  EXPECT_DOUBLE_EQ(gpu.covered_s, (8 + 4) / 2.0);
  EXPECT_NE(node.meters.states()[1].note.find("the meter is gone"), std::string::npos);
  EXPECT_EQ(node.meters.states()[0].note, "");
}

TEST(NodeMeters, ChecksACounterByItsPower) {
  TwoGpus node;
  node.second->counted_w = 90;  // counts a tenth too little
  for (int i = 0; i <= 10; ++i) node.sample(i);
  const std::vector<MeterState> states = node.meters.states();
  EXPECT_DOUBLE_EQ(states[0].counter_j, states[0].power_j);
  EXPECT_DOUBLE_EQ(states[1].counter_j, 900);
  EXPECT_DOUBLE_EQ(states[1].power_j, 1000);
}

// Read twice as often as it moves.
TEST(NodeMeters, ChecksACounterThatMovesInSteps) {
  TwoGpus node;
  node.first->period_s = node.second->period_s = 1;
  node.second->counted_w = 90;
  for (int i = 0; i <= 20; ++i) node.sample(0.5 * i);
  const std::vector<MeterState> states = node.meters.states();
  EXPECT_DOUBLE_EQ(states[0].counter_j, 1000);
  EXPECT_DOUBLE_EQ(states[0].power_j, 1000);
  EXPECT_DOUBLE_EQ(states[1].counter_j, 900);
  EXPECT_DOUBLE_EQ(states[1].power_j, 1000);
}

// Slurm's counter: between two updates the last power is kept, for at most two updates.
TEST(NodeMeters, ASlowMeterGoesOnBetweenItsUpdates) {
  auto state = std::make_shared<SteadyMeter::State>();
  state->period_s = 30;
  FoundMeters found;
  found.meters.push_back(std::make_unique<SteadyMeter>(
      MeterIdentity{.source = "slurm", .scope = "node", .level = EnergyLevel::Node, .update_s = 30},
      state));
  ByLevel<std::vector<std::size_t>> used;
  used[EnergyLevel::Node] = {0};
  NodeMeters meters(std::move(found), std::move(used));
  const auto sample_until = [&](double end_s) {
    for (; state->now_s <= end_s; state->now_s += 0.5) meters.sample([&] { return state->now_s; });
  };
  sample_until(55);
  const LevelAmount node = meters.amounts(55, 1)[EnergyLevel::Node];
  EXPECT_DOUBLE_EQ(node.joules, 55 * 100);
  EXPECT_DOUBLE_EQ(node.covered_s, 55);
  EXPECT_EQ(meters.states()[0].note, "");
  EXPECT_DOUBLE_EQ(meters.amounts(91, 1)[EnergyLevel::Node].joules, 30 * 100) << "not guessed";
}

// The GPUs are read while the meter of the node hangs.
TEST(NodeSampler, ASourceThatHangsDoesNotStopTheOthers) {
  auto hangs = std::make_shared<SteadyMeter::State>(),
       works = std::make_shared<SteadyMeter::State>();
  hangs->hangs = true;
  FoundMeters found;
  found.meters.push_back(std::make_unique<SteadyMeter>(
      MeterIdentity{.source = "ear", .scope = "node", .level = EnergyLevel::Node}, hangs));
  found.meters.push_back(std::make_unique<SteadyMeter>(
      MeterIdentity{
          .source = "nvml", .scope = "gpu0", .level = EnergyLevel::Gpu, .kind = MeterKind::Power},
      works));
  ByLevel<std::vector<std::size_t>> used;
  used[EnergyLevel::Node] = {0};
  used[EnergyLevel::Gpu] = {1};
  {
    NodeSampler sampler(meters_by_source(std::move(found), used), 0.01);
    EXPECT_TRUE(sampler.metered(EnergyLevel::Node) && sampler.metered(EnergyLevel::Gpu));
    ByLevel<LevelAmount> now, before;
    while ((now = sampler.now())[EnergyLevel::Gpu].covered_s < 0.05) {
      EXPECT_GE(now[EnergyLevel::Gpu].joules, before[EnergyLevel::Gpu].joules);
      before = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_NEAR(now[EnergyLevel::Gpu].joules, 100 * now[EnergyLevel::Gpu].covered_s, 1e-6);
    EXPECT_EQ(now[EnergyLevel::Node].covered_s, 0);
    hangs->hangs = false;
  }
}

TEST(NodeSampler, NeverWaitsForAMeterThatHangs) {
  auto state = std::make_shared<SteadyMeter::State>();
  FoundMeters found;
  found.meters.push_back(
      std::make_unique<SteadyMeter>(MeterIdentity{.source = "nvml", .scope = "gpu0"}, state));
  ByLevel<std::vector<std::size_t>> used;
  used[EnergyLevel::Node] = {0};
  const auto begin = std::chrono::steady_clock::now();
  {
    state->hangs = true;
    NodeSampler sampler(meters_by_source(std::move(found), used), 0.05);
    EXPECT_EQ(sampler.now()[EnergyLevel::Node].joules, 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30))
      << "it is left behind";
  state->hangs = false;  // lets its thread end
}

}  // namespace
}  // namespace kintsugi
