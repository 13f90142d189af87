// The whole program for AMD GPUs, with kernels that the emulator executes and stand-ins for ROCm's
// libraries: it trains, saves, resumes and generates as the CPU backend does, and says clearly what
// is wrong with a machine.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/mpirun.h"
#include "support/paths.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class EmulatedRun : public ProgramTest {
 protected:
  void SetUp() override {
    program_ = built_program("kintsugi_emulated");
    if (program_.empty()) GTEST_SKIP() << "built without Boost.Context, which the emulator needs";
    directory_.write("text.txt", text());
  }

  // Runs the program; `variables` are set for it.
  Outcome run(const std::string& arguments, const std::string& variables = "") {
    return run_in_shell(variables + " '" + program_ + "' " + arguments);
  }

  void train(const std::string& name, const std::string& model, const std::string& device,
             const std::string& precision, int steps, const std::string& launcher = "",
             const std::string& layout = "") {
    directory_.write(
        name + ".yaml",
        fmt::format("run: {{dir: {0}, seed: 3}}\nmodel: {{{1}, vocab_size: 256, hidden_size: 32, "
                    "layers: 2, heads: 2, max_positions: 16}}\n"
                    "data: {{train: [{{path: corpus}}], sequence_length: 12, valid_fraction: 0}}\n"
                    "batch: {{global: 4, micro: 1}}\ndevice: {2}\n"
                    "optimizer: {{lr: 1e-3, min_lr: 1e-3, warmup_steps: 2}}\n"
                    "train: {{steps: {4}, precision: {3}, checkpoint_every: 10, eval_every: 0}}\n"
                    "preflight: {{enabled: false}}\n{5}",
                    name, model, device, precision, steps, layout));
    if (!std::filesystem::exists(directory_ / "corpus.idx")) {
      ASSERT_EQ(run("data tokenize --input text.txt --tokenizer bytes --output corpus").code, 0);
    }
    const Outcome outcome = run_in_shell(launcher + " '" + program_ + "' train " + name + ".yaml");
    ASSERT_EQ(outcome.code, 0) << outcome.error;
  }

  std::vector<double> losses(const std::string& name) {
    std::vector<double> all;
    std::ifstream file(directory_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      all.push_back(nlohmann::json::parse(line).at("loss"));
    return all;
  }

  void expect_same_losses(const std::string& a, const std::string& b, double tolerance) {
    const std::vector<double> first = losses(a), second = losses(b);
    ASSERT_EQ(first.size(), second.size());
    ASSERT_FALSE(first.empty());
    for (std::size_t i = 0; i < first.size(); ++i)
      EXPECT_NEAR(first[i], second[i], tolerance * first[i]) << "step " << i + 1;
    EXPECT_LT(first.back(), first.front() - 0.05);  // it learns
  }

  std::string one_line_error(const std::string& arguments, const std::string& variables) {
    const Outcome outcome = run(arguments, variables);
    EXPECT_EQ(outcome.code, 2) << outcome.error;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
    return outcome.error;
  }

 private:
  static std::string text() {
    std::string all;
    for (int i = 0; i < 60; ++i) all += fmt::format("the dog number {} sleeps\n", i);
    return all;
  }
  std::string program_;
};

class EmulatedFamily : public EmulatedRun, public testing::WithParamInterface<std::string> {
 protected:
  static std::string model_of(const std::string& family) {
    if (family == "gpt2" || family == "bloom") return "family: " + family;
    return "family: " + family + ", ffn_size: 48" + (family == "retnet" ? ", value_size: 64" : "");
  }

  // Twenty steps on the CPU, and on GPUs with a launcher and a layout.
  void compare_with_cpu(const std::string& launcher, const std::string& layout) {
    struct Case {
      const char* precision;
      double tolerance;
    };
    const std::string model = model_of(GetParam());
    for (const auto& [precision, tolerance] : {Case{"fp32", 1e-5}, Case{"bf16", 5e-3}}) {
      SCOPED_TRACE(precision);
      const std::string cpu = fmt::format("cpu-{}", precision),
                        hip = fmt::format("hip-{}", precision);
      train(cpu, model, "cpu", precision, 20);
      train(hip, model, "hip", precision, 20, launcher, layout);
      expect_same_losses(cpu, hip, tolerance);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Each, EmulatedFamily,
                         testing::Values("gpt2", "llama", "bloom", "olmo2", "olmo3", "qwen2",
                                         "qwen3", "retnet"),
                         [](const auto& family) { return family.param; });

TEST_P(EmulatedFamily, TrainsAsOnTheCpu) { compare_with_cpu("", ""); }

// Four ranks, each with a GPU of its own, that share matrices and layers.
TEST_P(EmulatedFamily, TrainsOnFourRanks) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  compare_with_cpu(std::string(kOpenMpi) + "mpirun -np 4", "layout: {tp: 2, pp: 2}\n");
}

TEST_F(EmulatedRun, ResumesAndGenerates) {
  const std::string model = "family: llama, ffn_size: 48";
  train("whole", model, "hip", "bf16", 14);
  train("parts", model, "hip", "bf16", 10);
  directory_.write("parts.yaml", [&] {
    std::string yaml = content_of("parts.yaml");
    return yaml.replace(yaml.find("steps: 10"), 9, "steps: 14");
  }());
  const Outcome resumed = run("train parts.yaml");
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_EQ(losses("whole"), losses("parts"));
  const std::string generate =
      "generate --checkpoint parts --prompt 'the dog' --max-tokens 8 --temperature 0";
  const Outcome text = run(generate), same = run(generate, "KINTSUGI_STAND_IN_GPUS=0");
  ASSERT_EQ(text.code, 0) << text.error;
  ASSERT_EQ(same.code, 0) << same.error;
  EXPECT_EQ(text.out, same.out);
  // The first one used the GPU: it would not have done so with another.
  EXPECT_EQ(run(generate, "KINTSUGI_STAND_IN_TARGET=gfx1100").code, 2);
}

TEST_F(EmulatedRun, OfRocm5) {
  const std::string model = "family: llama, ffn_size: 48";
  train("new", model, "hip", "fp32", 2);
  // Its structure of a device's properties is another one, and so are its kinds of memory.
  train("old", model, "hip", "fp32", 2,
        "KINTSUGI_STAND_IN_ROCM=5.7 LD_LIBRARY_PATH=" + rocm_stand_in("../rocm5"));
  EXPECT_EQ(losses("new"), losses("old"));
}

TEST_F(EmulatedRun, ReplaysGraphsOnlyIfAsked) {
  const std::string model = "family: llama, ffn_size: 48", broken = "KINTSUGI_STAND_IN_GRAPHS=none";
  train("auto", model, "hip", "fp32", 2, broken);
  train("graphs", model, "hip", "fp32", 2, "", "gpu: {graphs: true}\n");
  EXPECT_EQ(losses("auto"), losses("graphs"));
  const Outcome outcome = run("train graphs.yaml --set run.dir=again", broken);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.error, HasSubstr("hipGraphLaunch"));
}

// Of each release, whose parameters, log-sum-exps and kernels differ.
TEST_F(EmulatedRun, TrainsWithAotriton) {
  const std::string model = "family: llama, ffn_size: 48, kv_heads: 1";
  const auto with = [](const std::string& release) {
    return "ROCM_PATH=" + rocm_stand_in("aotriton") + " KINTSUGI_STAND_IN_AOTRITON=" + release;
  };
  const auto lines_with = [&](const std::string& file, const std::string& text) {
    int count = 0;
    std::istringstream log(content_of(file));
    for (std::string line; std::getline(log, line);) count += line.find(text) != std::string::npos;
    return count;
  };
  train("cpu", model, "cpu", "bf16", 12);
  for (const std::string release : {"0.10", "0.11", "0.13"}) {
    SCOPED_TRACE(release);
    train(release, model, "hip", "bf16", 12, with(release));
    expect_same_losses("cpu", release, 5e-3);
    const std::string name = release == "0.13" ? "0.12 or 0.13" : release;
    EXPECT_EQ(lines_with(release + "/log.txt", ", AOTriton " + name), 1);
    EXPECT_EQ(lines_with("error.txt", "portable"), 0);
  }
  // One that is not known, and none.
  train("unknown", model, "hip", "bf16", 12, with("0.14"));
  EXPECT_EQ(lines_with("error.txt",
                       "attention runs on the portable kernel, which is slower: "
                       "libaotriton_v2.so is none of 0.10 to 0.13"),
            1);
  train("none", model, "hip", "bf16", 12);
  EXPECT_EQ(lines_with("none/log.txt", "AOTriton") + lines_with("error.txt", "portable"), 0);
  EXPECT_EQ(losses("unknown"), losses("none"));
}

TEST_F(EmulatedRun, SaysWhatIsWrongWithAMachine) {
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: llama-tiny}\ndevice: hip\n"
                   "data: {train: [{path: text.txt}], tokenizer: bytes, sequence_length: 16}\n"
                   "batch: {global: 1, micro: 1}\noptimizer: {warmup_steps: 0}\n"
                   "train: {steps: 1, eval_every: 0}\n");
  const auto error = [&](const std::string& variables) {
    return one_line_error("train run.yaml", variables);
  };
  EXPECT_THAT(error("KINTSUGI_STAND_IN_ROCM=5.1"),
              HasSubstr("libamdhip64.so is of ROCm 5.1, but 5.2 or newer is needed"));
  EXPECT_THAT(error("KINTSUGI_STAND_IN_TARGET=gfx1100"),
              HasSubstr("is a gfx1100, and this program has code for gfx90a gfx942 only"));
  EXPECT_THAT(error("KINTSUGI_STAND_IN_GPUS=0"), HasSubstr("no AMD GPU can be used: libamdhip64.so "
                                                           "finds none"));
  // Files that are no libraries hide the stand-in.
  std::filesystem::create_directory(directory_ / "broken");
  for (const char* name :
       {"librocblas.so", "librocblas.so.5", "librocblas.so.4", "librocblas.so.0"})
    directory_.write(std::string("broken/") + name, "no library");
  EXPECT_THAT(error("LD_LIBRARY_PATH=broken"),
              AllOf(HasSubstr("matmuls need rocBLAS: "), HasSubstr("librocblas.so"),
                    HasSubstr("; load the module of ROCm or add its lib to LD_LIBRARY_PATH")));
}

// The real one, which finds no runtime or no device where CI runs.
TEST_F(ProgramTest, TheProgramForAmdGpusSaysThatThereIsNone) {
  const std::string program = built_program("kintsugi_hip");
  if (program.empty()) GTEST_SKIP() << "built without clang for AMD GPUs";
  if (std::filesystem::exists("/dev/kfd")) GTEST_SKIP() << "this machine has AMD GPUs";
  const Outcome version = run_in_shell("'" + program + "' --version");
  EXPECT_EQ(version.code, 0) << version.error;
  EXPECT_THAT(version.out, HasSubstr("gpu (ROCm"));
  directory_.write("run.yaml",
                   "run: {dir: run}\nmodel: {preset: llama-tiny}\ndevice: hip\n"
                   "data: {train: [{path: run.yaml}], tokenizer: bytes, sequence_length: 16}\n"
                   "batch: {global: 1, micro: 1}\noptimizer: {warmup_steps: 0}\n"
                   "train: {steps: 1, eval_every: 0}\n");
  const Outcome outcome = run_in_shell("'" + program + "' train run.yaml");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.error, StartsWith("error: no AMD GPU can be used: "));
  EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
}

}  // namespace
}  // namespace kintsugi
