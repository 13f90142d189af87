// A curation and a deduplication as job arrays in a real Slurm on this machine, one after the
// other.
#include <fmt/format.h>

#include <filesystem>
#include <random>

#include "support/directory_contents.h"
#include "support/fault_runs.h"
#include "support/program_test.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ArraysInSlurm : public ProgramTest {
 protected:
  void SetUp() override {
    directory_.write("cpu.yaml",
                     "name: cores\nnodes: 3\n"
                     "gpu: {name: CPU, vendor: none, bf16_tflops: 0.1, memory_gb: 4, "
                     "memory_gb_s: 10, tdp_w: 100}\n"
                     "node: {gpus: 1}\nnetwork: {gb_s: 1}\n"
                     "launch: {gpu_request: none, exclusive: false, cpus_per_task: 1}\n");
    directory_.write("recipe.yaml", "steps:\n  - repair:\n  - sample: {keep: 0.9}\n");
    fs::create_directory(directory_ / "in");
    std::mt19937 random(1);
    std::vector<std::string> texts;
    for (int file = 0; file < 7; ++file) {
      std::string lines;
      for (int i = 0; i < 100; ++i) {
        std::string text = "once";
        if (!texts.empty() && random() % 4 == 0)
          text = texts[random() % texts.size()] + " more";
        else
          for (int word = 0; word < 60; ++word) text += fmt::format(" w{}", random() % 5000);
        texts.push_back(text);
        lines += fmt::format("{{\"text\": \"{}\"}}\n", text);
      }
      directory_.write(fmt::format("in/{}.jsonl", file), lines);
    }
  }
  std::string curate(const std::string& output) {
    return "data curate recipe.yaml --input 'in/*.jsonl' --shard-size 50kB --output " + output;
  }
  static std::string dedup(const std::string& from, const std::string& output) {
    return fmt::format("data dedup '{}/documents-*' --output {}", from, output);
  }
  // The number of its last job.
  std::string submit(const std::string& arguments, const std::string& command) {
    const Outcome outcome = run_kintsugi(
        fmt::format("launch --machine cpu.yaml --time 10min {} -- {}", arguments, command));
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    const std::size_t at = outcome.out.rfind("submitted job ") + 14;
    return outcome.out.substr(at, outcome.out.find(':', at) - at);
  }
  void wait_for_jobs() {
    run_in_shell("for i in $(seq 600); do [ -n \"$(squeue -h)\" ] || break; sleep 0.1; done");
  }
  std::map<std::string, std::string> files_in(const std::string& name) {
    auto files = directory_contents(directory_ / name);
    std::erase_if(files, [](const auto& file) { return file.first.starts_with("launch"); });
    return files;
  }
};

TEST_F(ArraysInSlurm, HaveTheFilesOfOneProcess) {
  if (!SlurmCluster::available()) GTEST_SKIP() << "no Slurm here";
  ASSERT_EQ(run_kintsugi(curate("one")).code, 0);
  ASSERT_EQ(run_kintsugi(dedup("one", "one-dedup")).code, 0);
  const SlurmCluster cluster(3);
  const std::string first = submit("--array 4", curate("many"));
  const std::string last = submit("--array 5 --after " + first, dedup("many", "many-dedup"));
  const Outcome again = run_kintsugi("launch --machine cpu.yaml --time 10min --array 2 --after " +
                                     first + " -- " + dedup("many", "many-dedup"));
  EXPECT_EQ(again.code, 2) << again.out;
  EXPECT_THAT(again.error, testing::AnyOf(HasSubstr("many-dedup has an active job, "),
                                          HasSubstr("many-dedup is being written by")));
  wait_for_jobs();
  const std::string logs = run_in_shell("cat many*/launch/slurm-*.out").out;
  EXPECT_EQ(files_in("many"), files_in("one")) << logs;
  // dedup.json has the names of its inputs.
  auto many = files_in("many-dedup"), one = files_in("one-dedup");
  EXPECT_GT(one.size(), 20u);
  EXPECT_NE(many["dedup.json"], "");
  many.erase("dedup.json"), one.erase("dedup.json");
  for (auto& [name, content] : many)  // and the descriptions of units have them
    for (std::size_t at = 0; (at = content.find("many/documents-", at)) != std::string::npos;)
      content.replace(at, 4, "one");
  EXPECT_EQ(many, one) << logs;
  EXPECT_THAT(run_kintsugi("launch --status many-dedup").out, HasSubstr(last));
  // A unit that is missing is submitted again, alone.
  fs::remove(directory_ / "many-dedup/kept/00003.json");
  const Outcome missing =
      run_kintsugi("launch --machine cpu.yaml --array 5 --print -- " + dedup("many", "many-dedup"));
  EXPECT_THAT(missing.out, HasSubstr("#SBATCH --array=3\n")) << missing.error;
  EXPECT_EQ(std::string::npos, missing.out.find("signatures")) << missing.out;
}

// A task of the first stage fails: nothing waits for ever, and the rest is done later.
TEST_F(ArraysInSlurm, AFailedTaskEndsTheChain) {
  if (!SlurmCluster::available()) GTEST_SKIP() << "no Slurm here";
  ASSERT_EQ(run_kintsugi(curate("one")).code, 0);
  const SlurmCluster cluster(2);
  // The file of unit 3 cannot be written, until the directory in its place is gone.
  const fs::path obstacle = directory_ / "many/units/documents-00003-00000.jsonl.zst";
  fs::create_directories(obstacle);
  const std::string first = submit("--array 3", curate("many"));
  submit("--array 2 --after " + first, dedup("many", "many-dedup"));
  wait_for_jobs();
  EXPECT_FALSE(fs::exists(directory_ / "many/curation.json"));
  EXPECT_FALSE(fs::exists(directory_ / "many-dedup/dedup.json"));
  fs::remove(obstacle);
  EXPECT_THAT(run_kintsugi("launch --machine cpu.yaml --array 3 --print -- " + curate("many")).out,
              HasSubstr("#SBATCH --array=0\n"));
  submit("--array 3", curate("many"));
  wait_for_jobs();
  EXPECT_EQ(files_in("many"), files_in("one")) << run_in_shell("cat many/launch/slurm-*.out").out;
}

}  // namespace
}  // namespace kintsugi
