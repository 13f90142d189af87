// Parts of a trainer alone, without a Trainer around them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "support/captured_log.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "train/engine_options.h"
#include "train/trainer/save_policy.h"
#include "train/trainer/spike_policy.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A run on one rank with random weights, at step 0.
class RunPart : public testing::Test {
 protected:
  RunContext& open(const std::string& train) {
    run_.emplace(*backend_,
                 parse_run_config(small_config(corpus_, directory_ / "run", train), "test.yaml"),
                 groups_);
    run_->engine =
        std::make_unique<Engine>(*backend_, *backend_, engine_options(run_->config), groups_);
    run_->engine->initialize(run_->config.run.seed);
    run_->lock = RunLock::for_ranks(run_->directory);
    run_->log = std::make_unique<RunLog>(run_->directory, run_->last_step(),
                                         AttemptClock{0, [] { return 0.0; }});
    guard_.emplace(run_->config);
    energy_.emplace(*run_);
    saves_.emplace(*run_, *guard_, *energy_);
    return *run_;
  }
  // A step with this loss, without training.
  StepRecord step(double loss, double norm = 1, bool outlier = false) {
    StepRecord record{.step = ++run_->state.step};
    guard_->after_step(*run_->engine, {.loss = loss, .gradient_norm = norm, .outlier = outlier},
                       guard_->limits(), record);
    guard_->write_to(run_->state);
    return record;
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  Groups groups_ = single_rank_groups(*backend_);
  CapturedLog log_;
  std::optional<RunContext> run_;
  std::optional<StepGuard> guard_;
  std::optional<EnergyAccount> energy_;
  std::optional<SavePolicy> saves_;
};

using StepGuards = RunPart;

TEST_F(StepGuards, RecordWhyAStepWasSkipped) {
  open("precision: fp16, loss_scale: {initial: 64, hysteresis: 1}, max_skipped_steps: 2");
  EXPECT_EQ(step(2).skipped, "");
  EXPECT_EQ(guard_->loss_scale(), 64);
  EXPECT_EQ(step(2, INFINITY).skipped, "not finite");
  EXPECT_EQ(guard_->loss_scale(), 32);
  EXPECT_FALSE(guard_->health().healthy());
  EXPECT_EQ(guard_->divergence(), "");
  step(2, INFINITY);
  EXPECT_THAT(guard_->divergence(), HasSubstr("2 steps in a row"));
  EXPECT_EQ(step(9, 1, true).skipped, "outlier");
  EXPECT_THAT(log_.text(), HasSubstr("skipped as an outlier: loss 9.0000"));
}

TEST_F(StepGuards, GoOnFromTheStateOfACheckpoint) {
  open(
      "precision: fp16, loss_scale: {initial: 64, hysteresis: 1}, spikes: {action: stop, window: "
      "4}");
  for (const double loss : {2.0, 2.1, 2.2, 2.1}) step(loss);
  step(2, INFINITY);
  StepGuard resumed(run_->config);
  resumed.restore(run_->state, true);
  EXPECT_EQ(resumed.loss_scale(), 32);
  EXPECT_EQ(resumed.health().skipped(), 1);
  TrainerState again;
  resumed.write_to(again);
  EXPECT_EQ(again.spikes, run_->state.spikes);
  StepRecord record;
  resumed.after_step(*run_->engine, {.loss = 9, .gradient_norm = 1}, {}, record);
  EXPECT_THAT(resumed.spike(), HasSubstr("the loss 9.0000 is"));
  StepGuard other(run_->config);  // from a checkpoint in another precision
  other.restore(run_->state, false);
  EXPECT_EQ(other.loss_scale(), 64);
}

using SavePolicies = RunPart;

TEST_F(SavePolicies, SaveAtTheStepsThatAreAskedFor) {
  RunContext& run = open("steps: 9, checkpoint_every: 4, keep_every: 6");
  std::vector<std::int64_t> due;
  for (run.state.step = 1; run.state.step <= 9; ++run.state.step)
    if (saves_->is_due()) due.push_back(run.state.step);
  EXPECT_THAT(due, testing::ElementsAre(4, 6, 8, 9));
  run.state.step = 3;
  saves_->decide(1);  // train.checkpoint_every: auto, on rank 0
  EXPECT_TRUE(saves_->is_due());
  saves_->decide(0);
  EXPECT_FALSE(saves_->is_due());
  EXPECT_EQ(saves_->asks_now(), 0) << "the interval is given in steps";
}

TEST_F(SavePolicies, SaveNothingWithSaveFalse) {
  RunContext& run = open("steps: 4, checkpoint_every: 1, save: false");
  run.state.step = 4;
  EXPECT_FALSE(saves_->is_due());
}

TEST_F(SavePolicies, RememberTheNewestHealthyCheckpoint) {
  RunContext& run = open("steps: 9, checkpoint_every: 1, async_save: false");
  step(2);
  saves_->save();
  EXPECT_EQ(run.checkpoints.last, (run.directory / "checkpoints/step-00000001").string());
  EXPECT_EQ(run.checkpoints.healthy, run.checkpoints.last);
  EXPECT_EQ(run.checkpoints.ancestors.size(), 1u);
  step(2, INFINITY);
  saves_->save();
  EXPECT_EQ(run.checkpoints.last, (run.directory / "checkpoints/step-00000002").string());
  EXPECT_EQ(run.checkpoints.healthy, (run.directory / "checkpoints/step-00000001").string());
  try {
    saves_->end_diverged("the loss is a pear");
    ADD_FAILURE() << "the run goes on";
  } catch (const Diverged& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("diverged at step 2: the loss is a pear"),
                                    HasSubstr("checkpoints/step-00000001: lower optimizer.lr"),
                                    HasSubstr("point checkpoints/latest to it and run again")));
  }
}

TEST_F(SavePolicies, SomeFailedSavesAreAWarning) {
  RunContext& run = open("steps: 9, checkpoint_every: 1, async_save: false, max_failed_saves: 2");
  std::ofstream(run.directory / "checkpoints") << "not a folder";
  step(2);
  saves_->save();
  EXPECT_THAT(log_.warnings(), HasSubstr("saves again later (1 of 2 failed saves in a row)"));
  step(2);
  EXPECT_THROW(saves_->save(), SharedFailure);
  EXPECT_EQ(run.checkpoints.last, "");
}

class SpikePolicies : public RunPart {
 protected:
  SpikePolicy& spikes(const std::string& options) {
    RunContext& run = open("steps: 90, spikes: {window: 4, " + options + "}");
    reference_.emplace(run);
    feed_.emplace(run, *reference_);
    copies_.emplace(run, *guard_);
    opening_.emplace(run, RunOpening::Parts{*guard_, *feed_, *copies_, *reference_});
    for (int i = 0; i < 4; ++i) step(2);
    return policy_.emplace(run, *guard_, *saves_, *opening_);
  }

  std::optional<PreferenceReference> reference_;
  std::optional<BatchFeed> feed_;
  std::optional<MemoryCopyPolicy> copies_;
  std::optional<RunOpening> opening_;
  std::optional<SpikePolicy> policy_;
};

TEST_F(SpikePolicies, WarnOrEndTheRun) {
  EXPECT_EQ(spikes("action: warn").trouble(), "");
  step(50);
  EXPECT_EQ(policy_->trouble(), "");
  EXPECT_THAT(log_.warnings(), HasSubstr("step 5: the loss 50.0000 is"));
  run_.reset();  // its lock
  EXPECT_EQ(spikes("action: stop").trouble(), "");
  step(50);
  EXPECT_THAT(policy_->trouble(), HasSubstr("the loss 50.0000 is"));
  EXPECT_FALSE(policy_->rewind("a spike")) << "this is not asked for";
}

TEST_F(SpikePolicies, DivergenceIsTroubleWithoutASpike) {
  spikes("action: warn");
  run_->config.train.max_skipped_steps = 1;
  guard_.emplace(run_->config);
  step(2, INFINITY);
  EXPECT_THAT(policy_->trouble(), HasSubstr("1 step in a row"));
}

TEST_F(SpikePolicies, ARewindNeedsAHealthyCheckpointThatIsOldEnough) {
  spikes("action: rewind, rewind_steps: 3, max_rewinds: 1");
  step(50);
  EXPECT_FALSE(policy_->rewind(policy_->trouble()));
  EXPECT_THAT(log_.warnings(),
              HasSubstr("there is no healthy checkpoint 3 or more steps before step 5"));
  guard_->spikes().note_rewind(5);
  step(50);
  EXPECT_FALSE(policy_->rewind("a spike"));
  EXPECT_THAT(log_.warnings(), HasSubstr("1 rewinds in a row did not help"));
}

}  // namespace
}  // namespace kintsugi
