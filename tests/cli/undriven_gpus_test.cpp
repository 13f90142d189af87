// Machines with GPUs that this program cannot use: what plan and train --dry-run say of them.
// launch is tested in tests/launch.
#include <nlohmann/json.hpp>

#include "backend/gpu/gpu_backend.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kAmdNote =
    "Note: this program cannot use the GPUs of LUMI-G (MI250X GCD, AMD): it was built without HIP "
    "(docs/install.md). The figures are for a program that can.\n";
constexpr const char* kCudaNote = "H100 SXM 80GB, NVIDIA): it was built without CUDA";

class UndrivenGpus : public PlanCommandTest {
 protected:
  std::string printed(const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return outcome.out;
  }
  std::string dry_run(const std::string& machine, const std::string& arguments = "") {
    directory_.write("run.yaml",
                     "run: {dir: run}\nmodel: {preset: llama-1b}\n"
                     "data: {train: [{path: corpus.txt}], sequence_length: 1024}\n"
                     "batch: {global: 8, micro: 1}\ntrain: {steps: 100}\n");
    const Outcome outcome =
        run_kintsugi("train --dry-run run.yaml --machine " + machine + " " + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return outcome.out;
  }
};

TEST_F(UndrivenGpus, EveryPlanSaysSo) {
  if (gpu_platform() == "hip") GTEST_SKIP() << "this program can use them";
  const std::string model = "--model llama-1b --batch 64 --gpus 8 --machine lumi-g ";
  EXPECT_THAT(printed(model + "--best 1"), HasSubstr(kAmdNote));
  EXPECT_THAT(printed(model + "--explain 1"), HasSubstr(kAmdNote));
  EXPECT_THAT(printed(model + "--scaling strong"), HasSubstr(kAmdNote));
  EXPECT_THAT(printed("calculate --parameters 1B --tokens 1T --gpus 8 --machine lumi-g"),
              HasSubstr(kAmdNote));
  EXPECT_THAT(printed("machines"), HasSubstr("Note: this program cannot use GPUs of AMD: it was "
                                             "built without HIP (docs/install.md).\n"));
}

TEST_F(UndrivenGpus, JsonHasVendorAndAnswer) {
  const json amd =
      json::parse(printed("--model llama-1b --batch 64 --gpus 8 --machine lumi-g --best 1 --json"));
  EXPECT_EQ(amd["gpu_vendor"], "amd");
  EXPECT_EQ(amd["drives_gpus"], gpu_platform() == "hip");
  const json none = json::parse(
      printed("--model llama-tiny --batch 4 --gpus 1 --machine laptop --best 1 --json"));
  EXPECT_EQ(none["gpu_vendor"], "none");
  EXPECT_EQ(none["drives_gpus"], true);
}

TEST_F(UndrivenGpus, ADryRunSaysSoUnlessItIsForTheCpu) {
  const bool noted = dry_run("lumi-g").find(kAmdNote) != std::string::npos;
  EXPECT_NE(noted, gpu_platform() == "hip");
  EXPECT_THAT(dry_run("lumi-g", "--set device=cpu"), Not(HasSubstr("Note: ")));
}

TEST_F(UndrivenGpus, NvidiaNeedsABuildWithCuda) {
  const std::string table =
      printed("--model llama-1b --batch 64 --gpus 8 --machine dgx-h100 --best 1");
  const bool noted = (table + dry_run("dgx-h100")).find(kCudaNote) != std::string::npos;
  EXPECT_NE(noted, gpu_platform() == "cuda") << table;
}

// A description that does not name the vendor is neither praised nor blamed.
TEST_F(UndrivenGpus, AnUnknownVendorIsNotGuessed) {
  directory_.write("mine.yaml",
                   "name: mine\ngpu: {name: MI250X, bf16_tflops: 312, memory_gb: 80, "
                   "memory_gb_s: 2039, tdp_w: 400}\n");
  const json plan = json::parse(
      printed("--model llama-1b --batch 8 --gpus 1 --machine mine.yaml --best 1 --json"));
  EXPECT_EQ(plan["gpu_vendor"], "unknown");
  EXPECT_TRUE(plan["drives_gpus"].is_null());
  EXPECT_THAT(printed("--model llama-1b --batch 8 --gpus 1 --machine mine.yaml --best 1"),
              Not(HasSubstr("Note: ")));
}

// What programs can allocate of the 80 GiB of a data sheet.
TEST_F(UndrivenGpus, AnH100OffersLessThanItsDataSheet) {
  EXPECT_THAT(dry_run("dgx-h100"), HasSubstr(" of 79.1 GiB on the fullest rank"));
}

}  // namespace
}  // namespace kintsugi
