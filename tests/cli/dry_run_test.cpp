// kintsugi train --dry-run as a user runs it, as far as the planner's own tests do not cover it.
#include "cli/train/dry_run.h"

#include <regex>

#include "backend/cpu/cpu_backend.h"
#include "plan/search/planner.h"
#include "support/program_test.h"
#include "support/small_run.h"
#include "train/memory_check.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DryRun : public PlanCommandTest {
 protected:
  Outcome dry_run(const std::string& arguments) {
    return run_kintsugi("train --dry-run --machine dgx-h100 run.yaml " + arguments);
  }
};

// llama-8b has 8,030,261,248 parameters: with 12 bytes of fp32 master weights and moments each they
// do not fit the GPU.
TEST_F(DryRun, CountsWhatIsOffloaded) {
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: llama-8b}\n"
                   "data: {train: [{path: corpus.txt}], sequence_length: 4096}\n"
                   "batch: {global: 8, micro: 1}\n"
                   "optimizer: {lr: 1.0e-4}\ntrain: {steps: 100, precision: bf16}\n"
                   "layout: {recompute: full}\n");
  EXPECT_THAT(dry_run("").error, HasSubstr("it does not fit"));
  const Outcome offloaded = dry_run("--set 'offload={optimizer: true, update: device}'");
  EXPECT_EQ(offloaded.code, 0) << offloaded.error;
  EXPECT_THAT(offloaded.out, AllOf(HasSubstr("89.75 GiB of host memory"),
                                   HasSubstr("for copies of offloaded data")));
  const Outcome both =
      dry_run("--set 'offload={optimizer: true, gradients: true, update: device}'");
  EXPECT_EQ(both.code, 0) << both.error;
  EXPECT_THAT(both.out, HasSubstr("119.7 GiB of host memory"))
      << "8.03e9 gradients of 4 bytes are on the host too";
  // 89.75 GiB = 96.4 GB.
  std::string machine = to_yaml(load_machine("dgx-h100"));
  machine =
      std::regex_replace(machine, std::regex("host_memory_gb: [0-9.]+"), "host_memory_gb: 96");
  directory_.write("small.yaml", machine);
  const Outcome refused = run_kintsugi(
      "train --dry-run --machine small.yaml --set 'offload={optimizer: true, update: device}' "
      "run.yaml");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.error, HasSubstr("it does not fit: 89.75 GiB of host memory for 1 rank per "
                                       "node, a node of DGX H100 (Eos) has 89.41 GiB"));
}

// The tasks of a run are read, with their documents.
TEST_F(DryRun, NamesTheTasksDuringTraining) {
  directory_.write("d.jsonl", "{\"a\": \"x y\", \"b\": \"z\"}\n{\"a\": \"v\", \"b\": \"w\"}\n");
  directory_.write("words.yaml",
                   "task: words\ndataset_path: json\noutput_type: loglikelihood\n"
                   "dataset_kwargs: {data_files: {test: d.jsonl}}\ntest_split: test\n"
                   "doc_to_text: a\ndoc_to_target: \"{{' ' + b}}\"\n");
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: llama-1b}\n"
                   "data: {train: [{path: corpus.txt}]}\nbatch: {global: 8, micro: 1}\n"
                   "train: {steps: 100, eval_tasks: [words.yaml]}\n");
  const Outcome found = dry_run("");
  EXPECT_EQ(found.code, 0) << found.error;
  EXPECT_THAT(found.out, HasSubstr("Tasks during training: words (2 documents).\n"));
  const Outcome missing = dry_run("--set 'train.eval_tasks=[other.yaml]'");
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.error, AllOf(HasSubstr("train.eval_tasks: "), HasSubstr("other.yaml")));
}

// The days of a stage are its steps times the time of a step.
TEST_F(DryRun, PredictsEachStageAndTheSum) {
  const std::string stages =
      "run: {dir: run}\nmodel: {preset: llama-1b}\n"
      "data: {train: [{path: corpus.txt}], sequence_length: 4096}\n"
      "batch: {global: 64, micro: 1}\noptimizer: {warmup_steps: 0}\n"
      "train: {precision: bf16, checkpoint_every: 0}\nlayout: {recompute: full, dp: 8}\n"
      "stages:\n"
      "  - {name: short, steps: 1000}\n"
      "  - {name: long, steps: 3000, sequence_length: 16384, batch: {global: 16}}\n"
      "  - {name: huge, steps: 2, sequence_length: 8388608, batch: {global: 8}}\n";
  directory_.write("run.yaml", stages.substr(0, stages.find("  - {name: huge")));
  const Outcome fits = dry_run("");
  EXPECT_EQ(fits.code, 0) << fits.error;
  EXPECT_THAT(fits.out, AllOf(HasSubstr("stage 1 of 2 (short): 262.1 M tokens in 1000 steps"),
                              HasSubstr("stage 2 of 2 (long): 786.4 M tokens in 3000 steps"),
                              HasSubstr("All stages: 1.049 B tokens, 4000 steps, ")));
  EXPECT_THAT(fits.error, HasSubstr("stage 2 of 2 (long): the learning rate jumps from 0.0001 to "
                                    "0.001 at its start"));
  directory_.write("run.yaml", stages);
  const Outcome too_large = dry_run("");
  EXPECT_EQ(too_large.code, 2);
  EXPECT_THAT(too_large.error, HasSubstr("stage 3 of 3 (huge): it does not fit"));
}

// Batches of 4, 4, 4, 4, 8, 8, 12, 12, then 16: 12 steps have 120 samples of 32 tokens.
TEST_F(DryRun, CountsTheTokensOfARamp) {
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: llama-tiny}\n"
                   "data: {train: [{path: corpus.txt}], sequence_length: 32}\n"
                   "batch: {global: 16, micro: 4, ramp: {start: 4, increment: 4, samples: 48}}\n"
                   "optimizer: {warmup_steps: 1}\ntrain: {steps: 12, precision: bf16}\n");
  const Outcome outcome = dry_run("");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("3.84 k tokens: "),
                                 HasSubstr("With batch.ramp the run has 12 steps")));
}

// For a run on the CPU the plan uses the CPU backend too.
TEST(PlanJobOfARun, IsTheEnginesOnProcessorsToo) {
  const RunConfig config =
      parse_run_config(small_config("corpus.txt", "run", "steps: 5", "device: cpu\n"), "run.yaml",
                       {"model.vocab_size=50304", "data.tokenizer=bytes"});
  const auto cpu = make_cpu_backend(1);
  Planner planner(plan_job(config), load_machine("laptop"));
  const auto stages = planner.memory({.micro_batch = config.layout.micro_batch});
  EXPECT_EQ(total(stages[0]), static_cast<std::int64_t>(
                                  planned_memory(*cpu, config, single_rank_groups(*cpu)).device));
}

}  // namespace
}  // namespace kintsugi
