// kintsugi train --dry-run as a user runs it, beside what the planner's own tests cover.
#include "cli/dry_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "plan/planner.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#include "train/memory_check.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DryRun : public testing::Test {
 protected:
  struct Outcome {
    int code;
    std::string out, error;
  };
  Outcome run(const std::string& arguments) {
    const std::string command = "cd '" + directory_.path().string() +
                                "' && '" KINTSUGI_BINARY "' train --dry-run " + arguments +
                                " >out.txt 2>error.txt";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), content_of("out.txt"), content_of("error.txt")};
  }
  std::string content_of(const std::string& name) {
    std::ifstream file(directory_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  TemporaryDirectory directory_;
};

// llama-8b has 8,030,261,248 parameters: 12 bytes of fp32 master weights and moments each are
// more than the GPU has.
TEST_F(DryRun, CountsWhatIsOffloaded) {
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: llama-8b}\n"
                   "data: {train: [{path: corpus.txt}], sequence_length: 4096}\n"
                   "batch: {global: 8, micro: 1}\n"
                   "optimizer: {lr: 1.0e-4}\ntrain: {steps: 100, precision: bf16}\n"
                   "layout: {recompute: full}\n");
  const std::string machine = "--machine dgx-h100 run.yaml";
  EXPECT_THAT(run(machine).error, HasSubstr("it does not fit"));
  const Outcome offloaded = run(machine + " --set 'offload={optimizer: true, update: device}'");
  EXPECT_EQ(offloaded.code, 0) << offloaded.error;
  EXPECT_THAT(offloaded.out,
              AllOf(HasSubstr("89.75 GiB of host memory"), HasSubstr("are not modelled")));
  const Outcome both =
      run(machine + " --set 'offload={optimizer: true, gradients: true, update: device}'");
  EXPECT_EQ(both.code, 0) << both.error;
  EXPECT_THAT(both.out, HasSubstr("119.7 GiB of host memory"))
      << "8.03e9 gradients of 4 bytes more on the host";
}

// Where the run computes on a processor, so does the plan.
TEST(PlanJobOfARun, IsTheEnginesOnProcessorsToo) {
  const RunConfig config =
      parse_run_config(small_config("corpus.txt", "run", "steps: 5", "device: cpu\n"), "run.yaml",
                       {"model.vocab_size=50304", "data.tokenizer=bytes"});
  const auto cpu = make_cpu_backend(1);
  Planner planner(plan_job(config), load_machine("laptop"));
  const auto stages = planner.memory({.micro = config.batch.micro});
  EXPECT_EQ(total(stages[0]),
            static_cast<std::int64_t>(planned_memory(*cpu, config, groups_of_one(*cpu)).device));
}

}  // namespace
}  // namespace kintsugi
