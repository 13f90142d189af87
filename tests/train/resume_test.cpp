// N steps without interruption give bitwise the same result as k steps, a restart, and N - k steps.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "support/paths.h"
#include "support/same_checkpoint.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct ResumeCase {
  const char* name;
  const char* train;
  const char* rest;
};

// 200 sentences have about 200 windows: 9 steps of 6 samples end in the first epoch, 45 steps in
// the second.
const ResumeCase kCases[] = {
    {"plain", "steps: 9, checkpoint_every: 4, eval_every: 3", ""},
    {"dropout", "steps: 9, checkpoint_every: 5, eval_every: 0, dropout: 0.2", ""},
    {"second_epoch", "steps: 45, checkpoint_every: 40, eval_every: 0", ""},
    {"bf16", "steps: 9, checkpoint_every: 4, eval_every: 0, precision: bf16",
     "layout: {recompute: full}\n"},
    {"fp16_after_overflows",
     "steps: 12, checkpoint_every: 7, eval_every: 0, precision: fp16, loss_scale: {initial: 1e10, "
     "growth_interval: 3}",
     ""},
    {"fp8", "steps: 9, checkpoint_every: 4, eval_every: 3, precision: bf16, fp8: {recipe: rowwise}",
     ""},
    {"fp64", "steps: 6, checkpoint_every: 3, eval_every: 0, precision: fp64",
     "layout: {recompute: selective}\n"},
    {"offloaded", "steps: 9, checkpoint_every: 4, eval_every: 4, precision: bf16",
     "layout: {recompute: full}\noffload: {optimizer: true, activations: true, update: device}\n"},
    {"packed", "steps: 9, checkpoint_every: 4, eval_every: 3", ""},
    // Batches of 2, 2, 2, 2, 4, 4, 6, …: the checkpoints are before, in and after the ramp.
    {"ramp", "steps: 9, checkpoint_every: 2, eval_every: 3, dropout: 0.1", ""},
    {"updated_on_the_host", "steps: 9, checkpoint_every: 4, eval_every: 0",
     "offload: {optimizer: true, update: host}\n"},
    {"averaged",
     "steps: 9, checkpoint_every: 4, eval_every: 0, precision: bf16, ema: {decay: 0.9, every: 2}",
     ""},
    {"averaged_and_offloaded", "steps: 9, checkpoint_every: 4, eval_every: 0, ema: {decay: 0.9}",
     "offload: {optimizer: true, update: device}\n"},
    {"z_loss", "steps: 9, checkpoint_every: 4, eval_every: 0, z_loss: 1e-3", ""},
};

class ResumeTest : public testing::TestWithParam<ResumeCase> {
 protected:
  static std::string config(const std::string& corpus, const fs::path& run) {
    std::string text = small_config(corpus, run, GetParam().train, GetParam().rest);
    if (GetParam().name == std::string("packed"))
      text.replace(text.find("valid_fraction"), 0, "packing: best_fit, document_mask: true, ");
    if (GetParam().name == std::string("ramp"))
      text.replace(text.find("micro: 2"), 0, "ramp: {start: 2, increment: 2, samples: 16}, ");
    if (GetParam().name == std::string("fp8"))
      text.replace(text.find("length: 24"), 10, "length: 32");
    const std::string few = "layers: 2";
    // With two blocks, no block input is offloaded.
    if (text.find("activations") != std::string::npos)
      text.replace(text.find(few), few.size(), "layers: 5");
    return text;
  }
};

TEST_P(ResumeTest, ContinuesBitForBit) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const fs::path whole = directory / "whole", broken = directory / "broken";
  run_training(config(corpus, whole));
  const fs::path end = last_checkpoint(whole);

  // Simulate a kill right after the first checkpoint: copy only that checkpoint.
  std::vector<fs::path> checkpoints;
  for (const auto& entry : fs::directory_iterator(whole / "checkpoints"))
    if (!entry.is_symlink() && entry.path().filename() != "state")
      checkpoints.push_back(entry.path());
  std::sort(checkpoints.begin(), checkpoints.end());
  ASSERT_GE(checkpoints.size(), 2u);
  const CheckpointPaths first{broken / "checkpoints", checkpoints.front().filename()};
  fs::create_directories(first.folder / "state");
  fs::copy(checkpoints.front(), first.model(), fs::copy_options::recursive);
  fs::copy(state_directory(checkpoints.front()), first.state(), fs::copy_options::recursive);

  run_training(config(corpus, broken));
  ASSERT_EQ(last_checkpoint(broken).filename(), end.filename());
  expect_same_checkpoint(last_checkpoint(broken), end);
}
INSTANTIATE_TEST_SUITE_P(Cases, ResumeTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Starts the binary; the caller must wait for it.
pid_t start_binary(const fs::path& config, const fs::path& output) {
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execl(kintsugi_binary().c_str(), "kintsugi", "train", config.c_str(), nullptr);
    _exit(127);
  }
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

void wait_for_lines(const fs::path& metrics, int lines) {
  for (int i = 0; i < 6000; ++i) {
    std::ifstream file(metrics);
    int count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    if (count >= lines) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL() << metrics << " never had " << lines << " lines";
}

class InterruptTest : public testing::TestWithParam<int> {};

TEST_P(InterruptTest, AnInterruptedProcessContinuesBitForBit) {
  const int signal = GetParam();
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const char* train = "steps: 400, checkpoint_every: 7, eval_every: 50, dropout: 0.1";
  const fs::path whole = directory / "whole", broken = directory / "broken";
  const fs::path whole_config = directory.write("whole.yaml", small_config(corpus, whole, train));
  const fs::path broken_config =
      directory.write("broken.yaml", small_config(corpus, broken, train));
  ASSERT_EQ(wait_for(start_binary(whole_config, directory / "whole.txt")), 0)
      << read_text_file(directory / "whole.txt");

  const pid_t child = start_binary(broken_config, directory / "broken.txt");
  wait_for_lines(broken / "metrics.jsonl", 20);
  kill(child, signal);
  const int status = wait_for(child);
  if (signal == SIGKILL) {
    ASSERT_TRUE(WIFSIGNALED(status));
  } else {
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), exit_code::kStopped);
    const auto state = nlohmann::json::parse(read_text_file(broken / "status.json"));
    EXPECT_EQ(state.at("state"), "stopped");
    EXPECT_LT(state.at("step").get<int>(), 400);
    // The current step is finished and saved.
    EXPECT_EQ(state.at("last_checkpoint").get<std::string>(), last_checkpoint(broken).string());
  }
  ASSERT_EQ(wait_for(start_binary(broken_config, directory / "again.txt")), 0)
      << read_text_file(directory / "again.txt");
  expect_same_checkpoint(last_checkpoint(broken), last_checkpoint(whole));
  EXPECT_EQ(nlohmann::json::parse(read_text_file(broken / "status.json")).at("state"), "finished");
}
INSTANTIATE_TEST_SUITE_P(Signals, InterruptTest,
                         testing::Values(SIGKILL, SIGTERM, SIGUSR1, SIGINT));

}  // namespace
}  // namespace kintsugi
