// A short version of `make fault-test`: one trial of each important kind.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "support/campaign_faults.h"
#include "support/fault_runs.h"

namespace kintsugi {
namespace {

class Faults : public testing::Test {
 protected:
  static void run(Fault fault, bool slurm) {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun here";
    if (slurm && !SlurmCluster::available()) GTEST_SKIP() << "no Slurm here";
    SCOPED_TRACE("seed " + std::to_string(seed_));
    if (!runs_) runs_ = std::make_unique<FaultRuns>(seed_);
    const FaultReport report = runs_->trial(fault, slurm);
    EXPECT_GE(report.attempts, 1);
    if (report.detected_s) {
      EXPECT_LT(*report.detected_s, 15);
    }
  }
  static void run_campaign(const CampaignSize& size) {
    if (!SlurmCluster::available()) GTEST_SKIP() << "no Slurm here";
    SCOPED_TRACE("seed " + std::to_string(seed_));
    if (!runs_) runs_ = std::make_unique<FaultRuns>(seed_);
    EXPECT_NE(runs_->campaign_trial(size).what, "");
  }
  static void TearDownTestSuite() { runs_.reset(); }

 private:
  static inline const std::uint64_t seed_ = std::random_device{}();
  static inline std::unique_ptr<FaultRuns> runs_ = {};  // with the undisturbed run of all trials
};

TEST_F(Faults, AKilledRankUnderMpirun) { run(Fault::KillRank, false); }
TEST_F(Faults, AStoppedRankUnderMpirun) { run(Fault::StopRank, false); }
TEST_F(Faults, AKilledSupervisorUnderMpirun) { run(Fault::KillSupervisor, false); }
TEST_F(Faults, ADamagedCheckpointUnderMpirun) { run(Fault::FlipBit, false); }
TEST_F(Faults, ADeadNodeUnderSlurm) { run(Fault::KillNode, true); }
TEST_F(Faults, ACampaignUnderSlurm) {
  run_campaign({.sweep = 2, .cool = 1, .last = 2, .faults = 1});
}

}  // namespace
}  // namespace kintsugi
