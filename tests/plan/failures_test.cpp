// Failures of nodes against the closed forms of Young and Daly, and against simulated runs.
#include "plan/costs/failures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "plan/costs/footprint.h"
#include "support/errors.h"

namespace kintsugi {
namespace {

// A run, failure by failure: `steps` steps with a save after every `every` of them and at the end.
class SimulatedRun {
 public:
  SimulatedRun(const FailingRun& run, double step_s, unsigned seed)
      : run_(run), step_s_(step_s), random_(seed), until_failure_(1 / run.mtbf_s) {}

  // Seconds, and the number of failures.
  std::pair<double, int> time(int steps, int every) {
    double now = 0, failure = until_failure_(random_);
    int failures = 0;
    // Whether the next `seconds` end without a failure.
    const auto advance = [&](double seconds) {
      if (now + seconds <= failure) {
        now += seconds;
        return true;
      }
      now = failure;
      failure = now + until_failure_(random_);
      ++failures;
      return false;
    };
    for (int saved = 0; saved < steps;) {
      const int next = std::min(every, steps - saved);
      if (advance(next * step_s_ + run_.save_s))
        saved += next;
      else
        while (!advance(run_.restart_s)) {
        }
    }
    return {now, failures};
  }

 private:
  FailingRun run_;
  double step_s_;
  std::mt19937_64 random_;
  std::exponential_distribution<double> until_failure_;
};

// Young 1974: 40 s and 7 days make 116 minutes.
TEST(Failures, IntervalOfYoung) {
  const FailingRun run{.mtbf_s = 7 * 86400, .save_s = 40};
  EXPECT_NEAR(best_interval_s(run) / 60, 116, 1);
  EXPECT_EQ(best_interval_s({.mtbf_s = 100, .save_s = 200}), 100) << "Daly: for long saves M";
}

// No other interval costs 0.2 % less, whatever the save takes.
TEST(Failures, IntervalCostsLeast) {
  for (const double save : {0.1, 1.0, 10.0, 100.0, 500.0, 1000.0}) {
    const FailingRun run{.mtbf_s = 1000, .save_s = save, .restart_s = 50};
    const auto cost = [&](double interval) {
      return expected_time(run, interval).total_s() / interval;
    };
    const double best = cost(best_interval_s(run));
    for (double interval = 1; interval < 4000; interval *= 1.01)
      EXPECT_GT(cost(interval), 0.998 * best) << save << " " << interval;
  }
}

// Daly 2006, equation 20: M e^(R/M) (e^((t + d)/M) - 1).
TEST(Failures, ExpectedTimeOfDaly) {
  for (const double interval : {10.0, 300.0, 2000.0}) {
    const ExpectedTime time =
        expected_time({.mtbf_s = 1000, .save_s = 20, .restart_s = 60}, interval);
    const double daly = 1000 * std::exp(0.06) * (std::exp((interval + 20) / 1000) - 1);
    EXPECT_NEAR(time.total_s() / daly, 1, 1e-12);
    EXPECT_GT(time.trained_s, interval + 20);
  }
}

TEST(Failures, SparesOfAPoissonDistribution) {
  EXPECT_EQ(spare_nodes(0, 0.99), 0);
  EXPECT_EQ(spare_nodes(0.01, 0.99), 0) << "e^-0.01 = 0.9900";
  EXPECT_EQ(spare_nodes(1, 0.99), 4) << "e^-1 (1 + 1 + 1/2 + 1/6 + 1/24) = 0.9963";
  EXPECT_EQ(spare_nodes(10, 0.99), 18) << "tables of the distribution";
  EXPECT_NEAR(static_cast<double>(spare_nodes(1e6, 0.99)), 1e6 + 2.326 * 1e3, 5) << "normal";
  EXPECT_LT(spare_nodes(1e4, 1), 12'000) << "rounding does not make it endless";
}

TEST(Failures, SparesSufficeInSimulatedPeriods) {
  std::mt19937_64 random(5);
  for (const double mean : {0.3, 2.0, 7.0}) {
    std::poisson_distribution<std::int64_t> failures(mean);
    const std::int64_t spares = spare_nodes(mean, 0.99);
    int enough = 0, one_less = 0;
    for (int period = 0; period < 40'000; ++period) {
      const std::int64_t count = failures(random);
      enough += count <= spares;
      one_less += count <= spares - 1;
    }
    EXPECT_GT(enough, 0.987 * 40'000) << mean;
    EXPECT_LT(one_less, 0.992 * 40'000) << mean;
  }
}

// ---- a planned run

struct Planned {
  PlanJob job{.model = load_preset("llama-1b"), .length = 4096, .batch = 64, .save_s = 30};
  Machine machine = load_machine("dgx-h100");
  Evaluation evaluation{.layout = {.dp = 64},
                        .step_s = 2,
                        .gpu_joule = 64 * 2 * 600.0,
                        .node_joule = 64 * 2 * 600.0 + 8 * 2 * 2600.0};
  Planned() {
    job.restart_s = 100;
    job.best_checkpoints = true;
    machine.facility.eur_per_gpu_hour = 2;
    machine.node.mtbf_h = 40;  // 8 nodes: 5 hours
  }
  RunFootprint footprint(double steps) const {
    return footprint_of(evaluation, job, machine, steps * job.tokens());
  }
};

TEST(PlannedFailures, DaysAreThoseOfSimulatedRuns) {
  const Planned planned;
  constexpr int kSteps = 100'001;
  const RunFootprint f = planned.footprint(kSteps);
  ASSERT_TRUE(f.failures);
  EXPECT_DOUBLE_EQ(f.failures->mtbf_s, 5 * 3600);
  // Reading a checkpoint takes as long as writing it.
  const FailingRun run{.mtbf_s = 5 * 3600, .save_s = 30, .restart_s = 130};
  SimulatedRun simulated(run, 2, 11);
  double seconds = 0, failures = 0;
  constexpr int kRuns = 400;
  for (int i = 0; i < kRuns; ++i) {
    const auto [time, count] = simulated.time(kSteps, static_cast<int>(f.checkpoint_every));
    seconds += time / kRuns;
    failures += static_cast<double>(count) / kRuns;
  }
  EXPECT_NEAR(f.days * 86400 / seconds, 1, 0.003);
  EXPECT_NEAR(f.failures->failures / failures, 1, 0.05);
  // A failure loses half an interval on average.
  const double lost = failures * static_cast<double>(f.checkpoint_every) * 2 / 2;
  EXPECT_NEAR(f.failures->lost_s / lost, 1, 0.1);
  EXPECT_NEAR(f.failures->restarts_s / (failures * 130), 1, 0.06);
}

TEST(PlannedFailures, CheckpointsCostLeast) {
  Planned planned;
  const RunFootprint best = planned.footprint(100'000);
  const std::int64_t every = best.failures->best_every;
  EXPECT_EQ(best.checkpoint_every, every);
  EXPECT_NEAR(static_cast<double>(every) * 2, std::sqrt(2 * 30 * 5 * 3600.0), 40) << "Young";
  EXPECT_EQ(best.checkpoints, std::ceil(100'000 / static_cast<double>(every)));
  planned.job.best_checkpoints = false;
  for (const double factor : {0.25, 0.5, 0.8, 1.25, 2.0, 4.0}) {
    planned.job.checkpoint_every = std::llround(factor * static_cast<double>(every));
    const RunFootprint other = planned.footprint(100'000);
    EXPECT_EQ(other.checkpoint_every, planned.job.checkpoint_every);
    EXPECT_EQ(other.failures->best_every, every);
    EXPECT_GT(other.days, best.days) << factor;
  }
}

// The same run without failures costs so much less.
TEST(PlannedFailures, LossesAreTheDifference) {
  Planned planned;
  planned.job.best_checkpoints = false;
  planned.job.checkpoint_every = 500;
  const RunFootprint with = planned.footprint(50'000);
  const RunFailures& lost = *with.failures;
  planned.machine.node.mtbf_h = 0;
  const RunFootprint without = planned.footprint(50'000);
  EXPECT_FALSE(without.failures);
  EXPECT_NEAR(with.days - without.days, (lost.lost_s + lost.restarts_s) / 86400, 1e-9);
  // A day of repairs at 8 nodes of 40 hours: 4.8 failures expected.
  EXPECT_EQ(lost.spare_nodes, spare_nodes(24 / 5.0, kSpareChance));
  const double spare_gpus = 8.0 * static_cast<double>(lost.spare_nodes);
  const double gpu_hours = (with.days - without.days) * 24 * 64 + with.days * 24 * spare_gpus;
  EXPECT_NEAR(lost.gpu_hours, gpu_hours, 1e-6 * gpu_hours);
  EXPECT_NEAR(*lost.euro, 2 * gpu_hours, 1e-6 * gpu_hours);
  EXPECT_NEAR(lost.gpu_hours, with.gpu_hours - without.gpu_hours, 1e-6 * gpu_hours);
  EXPECT_NEAR(lost.mwh, *with.energy.facility_mwh - *without.energy.facility_mwh, 1e-9);
  // What is done again at the power of training, the rest idle; hosts and spare nodes all the time.
  const double idle_w = planned.machine.gpu.idle_w, host_w = planned.machine.node.host_w;
  const double joule = lost.lost_s * (64 * 600.0 + 8 * 2600.0) +
                       lost.restarts_s * (64 * idle_w + 8 * host_w) +
                       with.days * 86400 * (spare_gpus * idle_w + spare_gpus / 8 * host_w);
  EXPECT_NEAR(lost.mwh * 3.6e9 / planned.machine.facility.pue / joule, 1, 1e-9);
}

TEST(PlannedFailures, AddUpOverStages) {
  const Planned planned;
  RunFootprint total = planned.footprint(20'000);
  const RunFootprint one = total, two = planned.footprint(40'000);
  total += two;
  EXPECT_DOUBLE_EQ(total.failures->failures, one.failures->failures + two.failures->failures);
  EXPECT_DOUBLE_EQ(total.failures->gpu_hours, one.failures->gpu_hours + two.failures->gpu_hours);
  EXPECT_EQ(total.failures->spare_nodes, one.failures->spare_nodes);
  Planned unknown;
  unknown.machine.node.mtbf_h = 0;
  total += unknown.footprint(10);
  EXPECT_FALSE(total.failures) << "of one stage it is not known";
}

// How many are needed does not depend on how many there are; those that there are cost.
TEST(PlannedFailures, SparesOfASmallMachine) {
  Planned planned;
  const std::int64_t needed = spare_nodes(24 / 5.0, kSpareChance);
  double all_hours = 0;
  for (const std::int64_t left : {100, 2, 0}) {
    planned.machine.nodes = 8 + left;
    const RunFootprint f = planned.footprint(1000);
    EXPECT_EQ(f.failures->spare_nodes, needed);
    EXPECT_EQ(f.failures->spares_there, std::min(needed, left));
    const auto nodes = static_cast<double>(8 + f.failures->spares_there);
    EXPECT_NEAR(f.gpu_hours, f.days * 24 * 8 * nodes, 1e-9 * f.gpu_hours);
    EXPECT_TRUE(all_hours == 0 || f.gpu_hours < all_hours) << left;
    if (left == 100) all_hours = f.gpu_hours;
  }
}

TEST(PlannedFailures, NothingIsCountedWithoutCheckpoints) {
  Planned planned;
  planned.job.best_checkpoints = false;
  planned.job.checkpoint_every = 0;
  EXPECT_FALSE(planned.footprint(1000).failures);
  planned.job.best_checkpoints = true;
  planned.job.save_s = 0;
  EXPECT_FALSE(planned.footprint(1000).failures) << "the time of a checkpoint is not known";
}

TEST(PlannedFailures, ARunThatCannotProgressIsRefused) {
  Planned planned;
  planned.machine.node.mtbf_h = 0.1;
  planned.job.best_checkpoints = false;
  planned.job.checkpoint_every = 10'000;
  EXPECT_NE(user_error_of([&] { planned.footprint(100'000); }).find("would hardly progress"),
            std::string::npos);
}

}  // namespace
}  // namespace kintsugi
