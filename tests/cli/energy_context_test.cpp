// energy.machine of a run: its facility and the planner's prediction.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/train/dry_run.h"
#include "plan/search/planner.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/program_test.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

RunConfig energy_run(const std::vector<std::string>& overrides, const std::string& more = "") {
  return parse_run_config(
      "run: {dir: out}\n"
      "model: {preset: gpt2-tiny, vocab_size: 512}\n"
      "data: {train: [{path: corpus.txt}], sequence_length: 16}\n"
      "batch: {global: 8, micro: 2}\n"
      "optimizer: {warmup_steps: 1}\n"
      "train: {steps: 30}\n"
      "device: cpu\n" +
          more,
      "run.yaml", overrides);
}

TEST(EnergyContext, NothingIsKnownWithoutAMachine) {
  const EnergyContext context = energy_context(energy_run({}), 2);
  EXPECT_EQ(context.facility, FacilitySpec{});
  EXPECT_THAT(context.planned, IsEmpty());
  EXPECT_EQ(context.no_plan, "energy.machine is not set");
  EXPECT_EQ(context.machine, "");
}

TEST(EnergyContext, HasTheFacilityAndThePlannersPrediction) {
  const RunConfig run = energy_run({"energy.machine=lumi-g"});
  const EnergyContext context = energy_context(run, 2);
  EXPECT_EQ(context.machine, "LUMI-G");
  EXPECT_EQ(context.facility.kg_co2_per_kwh, 0.0792);
  EXPECT_EQ(context.facility.kg_co2_per_kwh_market, 0);
  EXPECT_THAT(context.facility.co2_source, HasSubstr("Finland 2023"));
  ASSERT_EQ(context.planned.size(), 1u);
  const Machine machine = load_machine("lumi-g");
  const Evaluation e =
      Planner(plan_job(run), machine).timing({.dp = 2, .micro_batch = 2, .zero = run.layout.zero});
  EXPECT_EQ(context.planned[0].seconds, e.step_s);
  EXPECT_EQ(context.planned[0].gpu_j, e.gpu_joule);
  EXPECT_NEAR(context.planned[0].node_j.value() - e.gpu_joule, (600 + 6 * 45) * e.step_s, 1e-9);
  EXPECT_EQ(context.no_plan, "");
  EXPECT_THAT(prediction_text(context), HasSubstr("energy.machine LUMI-G: predicted "));
}

TEST(EnergyContext, TheConfigurationReplacesValues) {
  const EnergyContext alone =
      energy_context(energy_run({"energy.pue=1.5", "energy.kg_co2_per_kwh=0.1"}), 1);
  EXPECT_EQ(alone.facility.pue, 1.5);
  EXPECT_EQ(alone.facility.kg_co2_per_kwh, 0.1);
  EXPECT_EQ(alone.facility.kg_co2_per_kwh_market, -1);
  EXPECT_EQ(alone.facility.co2_source, "the configuration of the run");
  const EnergyContext lumi =
      energy_context(energy_run({"energy.machine=lumi-g", "energy.kg_co2_per_kwh_market=0.2"}), 1);
  EXPECT_EQ(lumi.facility.pue, 1.04);
  EXPECT_EQ(lumi.facility.kg_co2_per_kwh, 0.0792);
  EXPECT_EQ(lumi.facility.kg_co2_per_kwh_market, 0.2);
  EXPECT_THAT(lumi.facility.co2_source,
              AllOf(HasSubstr("Finland"), HasSubstr("; the configuration of the run")));
  for (const char* wrong : {"energy.pue=0.9", "energy.pue=-1", "energy.kg_co2_per_kwh=-0.1",
                            "energy.kg_co2_per_kwh_market=11", "energy.pue=nan"})
    EXPECT_THAT(user_error_of([&] { energy_run({wrong}); }), HasSubstr("energy.")) << wrong;
}

TEST(EnergyContext, EachStageHasItsPrediction) {
  const std::string stages =
      "stages:\n- {name: short, steps: 2}\n- {name: long, steps: 2, data: {sequence_length: 32}}\n";
  RunConfig run = parse_run_config(
      "run: {dir: out}\nmodel: {preset: gpt2-tiny, vocab_size: 512}\n"
      "data: {train: [{path: corpus.txt}], sequence_length: 16}\n"
      "batch: {global: 8, micro: 2}\noptimizer: {warmup_steps: 1}\ndevice: cpu\n"
      "energy: {machine: dgx-h100}\n" +
          stages,
      "run.yaml", {});
  const EnergyContext context = energy_context(run, 1);
  ASSERT_EQ(context.planned.size(), 2u);
  EXPECT_GT(context.planned[1].gpu_j, context.planned[0].gpu_j);
}

// What the planner cannot do is a warning: the run trains.
TEST(EnergyContext, WarnsWherePlansFail) {
  const CapturedLog log;
  const EnergyContext small = energy_context(energy_run({"energy.machine=laptop"}), 8);
  EXPECT_THAT(small.planned, IsEmpty());
  EXPECT_THAT(small.no_plan, HasSubstr("has 1 GPU, fewer than the 8 ranks of the run"));
  EXPECT_GT(small.facility.kg_co2_per_kwh, 0) << "its facility is known";
  EXPECT_THAT(log.text(), HasSubstr("no prediction"));
  const EnergyContext ramp = energy_context(
      energy_run({"energy.machine=dgx-h100", "batch.ramp={start: 2, increment: 2, samples: 16}"}),
      1);
  EXPECT_THAT(ramp.no_plan, HasSubstr("batch.ramp"));
}

TEST(EnergyContext, AnUnknownMachineIsAMistake) {
  EXPECT_THAT(user_error_of([] { energy_context(energy_run({"energy.machine=lumi"}), 1); }),
              AllOf(HasSubstr("energy.machine: there is no machine or file 'lumi'")));
}

class EnergyOfTrain : public ProgramTest {
 protected:
  EnergyOfTrain() {
    directory_.write("corpus.txt", small_corpus(400));
    directory_.write("run.yaml",
                     "run: {dir: out}\nmodel: {preset: gpt2-tiny}\n"
                     "data: {train: [{path: corpus.txt}], sequence_length: 16}\n"
                     "batch: {global: 4, micro: 2}\noptimizer: {warmup_steps: 1}\n"
                     "train: {steps: 3}\ndevice: cpu\nthreads: 1\n");
  }
};

TEST_F(EnergyOfTrain, SaysWhatIsPredicted) {
  const Outcome check = run_kintsugi("train run.yaml --check --set energy.machine=laptop");
  EXPECT_EQ(check.code, 0) << check.error;
  EXPECT_THAT(check.out + check.error, HasSubstr("energy.machine laptop: predicted "));
  const Outcome typo = run_kintsugi("train run.yaml --check --set energy.machine=laptob");
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.error, HasSubstr("did you mean 'laptop'"));
}

}  // namespace
}  // namespace kintsugi
