#include "train/trainer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "backend/cpu/cpu_backend_impl.h"
#include "core/file.h"
#include "support/paths.h"
#include "support/sanitizers.h"
#include "support/small_run.h"
#include "tensor/safetensors.h"
#include "train/engine_options.h"
#include "train/trainer/progress_report.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<Json> read_metrics(const fs::path& run) {
  std::vector<Json> records;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) records.push_back(Json::parse(line));
  return records;
}

std::vector<double> losses_of(const fs::path& run) {
  std::vector<double> losses;
  for (const Json& record : read_metrics(run)) losses.push_back(record.at("loss"));
  return losses;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

class TrainerTest : public testing::Test {
 protected:
  // Trains in run directory `name` and returns it.
  fs::path train(const std::string& name, const std::string& train, const std::string& rest = "",
                 const std::vector<std::string>& overrides = {}, int threads = 2) {
    const fs::path run = directory_ / name;
    const auto backend = make_cpu_backend(threads);
    Trainer trainer(*backend, parse_run_config(small_config(corpus_, run, train, rest), "test.yaml",
                                               overrides));
    testing::internal::CaptureStdout();
    trainer.run(ResumeMode::Auto);
    testing::internal::GetCapturedStdout();
    return run;
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(400));
};

TEST_F(TrainerTest, LearnsASmallGrammar) {
  const fs::path run = train("run", "steps: 250, eval_every: 250, checkpoint_every: 0");
  const auto records = read_metrics(run);
  ASSERT_EQ(records.size(), 250u);
  // The entropy of single letters is about 2.8 nats; the grammar makes most letters predictable.
  EXPECT_GT(records.front().at("loss").get<double>(), 5.0);
  EXPECT_LT(records.back().at("valid_loss").get<double>(), 1.2);
  EXPECT_NEAR(records.back().at("valid_bits_per_byte").get<double>(),
              records.back().at("valid_loss").get<double>() / std::log(2.0), 1e-9);
}

// A log line shows the mean of the steps since the previous line.
TEST_F(TrainerTest, LinesShowTheMeanOfTheirSteps) {
  const fs::path run = train("run", "steps: 8, log_every: 3, eval_every: 0, checkpoint_every: 0");
  const auto losses = losses_of(run);
  std::ifstream log(run / "log.txt");
  std::map<int, double> shown;  // by step
  for (std::string line; std::getline(log, line);) {
    const std::size_t at = line.find("step "), loss = line.find("/8  loss ");
    if (loss == std::string::npos) continue;
    shown[std::stoi(line.substr(at + 5))] = std::stod(line.substr(loss + 9));
    EXPECT_NE(line.find(" s/step"), std::string::npos) << line;
  }
  ASSERT_EQ(losses.size(), 8u);
  ASSERT_EQ(shown.size(), 3u);
  EXPECT_NEAR(shown[3], (losses[0] + losses[1] + losses[2]) / 3, 5.1e-5);
  EXPECT_NEAR(shown[6], (losses[3] + losses[4] + losses[5]) / 3, 5.1e-5);
  EXPECT_NEAR(shown[8], (losses[6] + losses[7]) / 2, 5.1e-5)
      << "the last line is the mean of fewer steps";
}

TEST(StepMeansTest, RatesAreThoseOfTheWholeInterval) {
  StepMeans means;
  means.add({.loss = 2, .gradient_norm = 1, .step_time_s = 1}, 100);
  means.add({.loss = 4, .gradient_norm = 3, .step_time_s = 3}, 100);
  means.add(
      {.loss = INFINITY, .gradient_norm = INFINITY, .skipped = "not finite", .step_time_s = 0.5},
      50);
  means.add({.loss = 9, .gradient_norm = 9, .skipped = "outlier", .step_time_s = 0.5}, 50);
  EXPECT_EQ(means.loss(), 3);
  EXPECT_EQ(means.gradient_norm(), 2);
  EXPECT_EQ(means.tokens_per_s(), 60) << "300 tokens in 5 s, not the mean of the four rates";
  EXPECT_EQ(means.step_time_s(), 5.0 / 4);
  EXPECT_EQ(means.skipped(), 2);
  EXPECT_EQ(means.outliers(), 1);
  means.clear();
  EXPECT_EQ(means.steps(), 0);
}

// Reports a peak that is too low, as if other work had disturbed its measurement.
class BusyBackend : public CpuBackend {
 public:
  BusyBackend() : CpuBackend(1) {}
  Peak peak_flops(DType) override { return {1.0, "measured while busy"}; }
};

TEST_F(TrainerTest, NoMfuAboveThePeak) {
  const fs::path run = directory_ / "run";
  BusyBackend backend;
  Trainer trainer(backend, parse_run_config(small_config(corpus_, run,
                                                         "steps: 3, log_every: 1, eval_every: 0, "
                                                         "checkpoint_every: 0"),
                                            "test.yaml"));
  testing::internal::CaptureStdout();
  trainer.run(ResumeMode::Auto);
  const std::string out = testing::internal::GetCapturedStdout();
  const std::string reason = "more than the peak of 1 FLOP/s (measured while busy)";
  EXPECT_NE(out.find(reason), std::string::npos) << out;
  EXPECT_EQ(out.find(reason), out.rfind(reason)) << "once";
  EXPECT_NE(out.find("MFU –"), std::string::npos) << out;
  for (const Json& record : read_metrics(run)) {
    EXPECT_TRUE(record.at("mfu").is_null());
    EXPECT_TRUE(record.at("mfu_full_attention").is_null());
  }
}

// Gradients are accumulated over micro-batches, and dropout depends on the global token index, so
// the size of a micro-batch does not matter.
TEST_F(TrainerTest, MicroBatchesDoNotChangeTheRun) {
  const std::string settings =
      "steps: 12, eval_every: 4, checkpoint_every: 0, dropout: 0.15, precision: fp64";
  const auto whole = losses_of(train("whole", settings, "", {"batch.micro=6"}));
  for (const int micro : {1, 2, 3}) {
    const auto split = losses_of(
        train(fmt::format("micro{}", micro), settings, "", {fmt::format("batch.micro={}", micro)}));
    EXPECT_LT(largest_difference(whole, split), 1e-11) << micro;
  }
}

TEST_F(TrainerTest, TheNumberOfThreadsDoesNotChangeTheRunBeyondRounding) {
  const std::string settings = "steps: 10, eval_every: 0, checkpoint_every: 0";
  const auto one = losses_of(train("one", settings, "", {}, 1));
  EXPECT_LT(largest_difference(one, losses_of(train("three", settings, "", {}, 3))), 2e-5);
}

TEST_F(TrainerTest, RecomputeDoesNotChangeALoss) {
  const std::string settings = "steps: 10, eval_every: 0, checkpoint_every: 0, dropout: 0.1";
  const auto kept = losses_of(train("none", settings));
  EXPECT_EQ(kept, losses_of(train("selective", settings, "layout: {recompute: selective}\n")));
  EXPECT_EQ(kept, losses_of(train("full", settings, "layout: {recompute: full}\n")));
}

TEST_F(TrainerTest, SixteenBitRunsFollowTheFp32Run) {
  const std::string settings = "steps: 60, eval_every: 60, checkpoint_every: 0, precision: ";
  const double fp32 = read_metrics(train("fp32", settings + "fp32")).back().at("valid_loss");
  const double bf16 = read_metrics(train("bf16", settings + "bf16")).back().at("valid_loss");
  const double fp16 = read_metrics(train("fp16", settings + "fp16, loss_scale: {initial: 65536}"))
                          .back()
                          .at("valid_loss");
  EXPECT_NEAR(bf16, fp32, 0.05);
  EXPECT_NEAR(fp16, fp32, 0.03);
}

// A scale of 2^32 overflows fp16 gradients: steps are skipped, with unchanged weights, until the
// scale is small enough.
TEST_F(TrainerTest, AnOverflowSkipsTheStepAndHalvesTheScale) {
  const auto records =
      read_metrics(train("fp16", "steps: 30, eval_every: 0, checkpoint_every: 0, precision: fp16"));
  EXPECT_EQ(records.front().at("loss_scale").get<double>(), 4294967296.0);
  EXPECT_TRUE(records.front().at("grad_norm").is_null());
  EXPECT_EQ(records[1].at("loss_scale").get<double>(), 4294967296.0);  // hysteresis
  EXPECT_EQ(records[2].at("loss_scale").get<double>(), 2147483648.0);
  EXPECT_FALSE(records.back().at("grad_norm").is_null());
  EXPECT_LT(records.back().at("loss").get<double>(), records.front().at("loss").get<double>());
}

TEST_F(TrainerTest, TokensEndARun) {
  const fs::path run = train("run", "tokens: 1000, eval_every: 0, checkpoint_every: 0");
  EXPECT_EQ(read_metrics(run).size(),
            7u);  // 144 tokens per step: 7 x 144 is the first multiple of at least 1000
}

TEST_F(TrainerTest, OldCheckpointsAreRemovedAndLatestIsKept) {
  const fs::path run = train("run", "steps: 10, eval_every: 0, checkpoint_every: 2", "",
                             {"train.keep_checkpoints=2"});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"latest", "state", "step-00000008", "step-00000010"}));
  EXPECT_EQ(fs::canonical(run / "checkpoints/latest").filename(), "step-00000010");
  names.clear();
  for (const auto& entry : fs::directory_iterator(run / "checkpoints/state"))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"step-00000008", "step-00000010"}));
}

TEST_F(TrainerTest, SavesNothingWithSaveFalse) {
  const fs::path run =
      train("run", "steps: 4, eval_every: 0, checkpoint_every: 2", "", {"train.save=false"});
  EXPECT_EQ(read_metrics(run).size(), 4u);
  EXPECT_TRUE(fs::is_empty(run / "checkpoints"));
}

TEST_F(TrainerTest, ADamagedCheckpointIsNamed) {
  const fs::path run = train("run", "steps: 4, eval_every: 0, checkpoint_every: 0");
  const fs::path file =
      state_directory(fs::canonical(run / "checkpoints/latest")) / "optimizer.safetensors";
  std::string content = read_text_file(file);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  write_file_atomically(file, content);
  try {
    train("run", "steps: 4, eval_every: 0, checkpoint_every: 0");
    FAIL() << "the damage was not detected";
  } catch (const UserError& error) {
    testing::internal::GetCapturedStdout();
    EXPECT_NE(std::string(error.what()).find("optimizer.safetensors does not match its checksum"),
              std::string::npos)
        << error.what();
  }
}

// Old checkpoints have the optimizer state inside the model's directory, with one list of
// checksums.
TEST_F(TrainerTest, AnOldCheckpointWithItsStateInsideContinues) {
  const std::string rest = "eval_every: 0, checkpoint_every: 4";
  const std::vector<std::string> same = {
      "optimizer.schedule=constant"};  // independent of the number of steps
  const fs::path whole = train("whole", "steps: 8, " + rest, "", same),
                 run = train("run", "steps: 4, " + rest, "", same);
  const CheckpointPaths at{run / "checkpoints", "step-00000004"};
  Json list = Json::parse(read_text_file(at.model() / "checksums.json"));
  const Json inside = Json::parse(read_text_file(at.state() / "checksums.json"));
  for (const char* kind : {"files", "pieces"})
    for (const auto& [name, hash] : inside.at(kind).items()) list[kind]["optimizer/" + name] = hash;
  write_file_atomically(at.model() / "checksums.json", list.dump());
  fs::remove(at.state() / "checksums.json");
  fs::rename(at.state(), at.model() / "optimizer");
  train("run", "steps: 8, " + rest, "", same);
  for (const char* file :
       {"step-00000008/model.safetensors", "state/step-00000008/optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(run / "checkpoints" / file) ==
                read_text_file(whole / "checkpoints" / file))
        << file;
}

TEST_F(TrainerTest, AModelWithoutItsStateIsNotContinuedAndSaysWhereItLooked) {
  const std::string settings = "steps: 4, eval_every: 0, checkpoint_every: 0";
  const fs::path run = train("run", settings);
  const CheckpointPaths at{run / "checkpoints", "step-00000004"};
  fs::remove_all(at.state());
  try {
    train("run", settings);
    FAIL() << "continued without moments";
  } catch (const UserError& error) {
    testing::internal::GetCapturedStdout();
    EXPECT_NE(std::string(error.what()).find("which is not in " + at.state().string()),
              std::string::npos)
        << error.what();
  }
}

TEST_F(TrainerTest, OtherDataIsNotContinued) {
  const std::string settings = "steps: 4, eval_every: 0, checkpoint_every: 0";
  train("run", settings);
  for (const char* change : {"data.valid_fraction=0.2", "data.sequence_length=12"}) {
    EXPECT_THROW(train("run", settings, "", {change}), UserError) << change;
    testing::internal::GetCapturedStdout();
  }
  EXPECT_NO_THROW(train("run", settings, "", {"batch.micro=3"}));
}

TEST_F(TrainerTest, OneProcessPerRunDirectory) {
  const auto other = RunLock::for_ranks(directory_ / "run");
  EXPECT_THROW(train("run", "steps: 2, eval_every: 0"), UserError);
  testing::internal::GetCapturedStdout();
}

TEST_F(TrainerTest, ANewRunDoesNotEnterAnOldDirectory) {
  const fs::path run = train("run", "steps: 2, eval_every: 0, checkpoint_every: 0");
  const auto backend = make_cpu_backend(1);
  Trainer trainer(*backend, parse_run_config(small_config(corpus_, run, "steps: 2"), "test.yaml"));
  EXPECT_THROW(trainer.run(ResumeMode::Never), UserError);
}

// A save was killed between moving the old checkpoint of this step away and moving the new one in.
TEST_F(TrainerTest, AHalfReplacedCheckpointIsRestored) {
  const fs::path run = train("run", "steps: 4, eval_every: 0, checkpoint_every: 0");
  const fs::path checkpoints = run / "checkpoints";
  fs::rename(checkpoints / "step-00000004", checkpoints / ".step-00000004.old");
  fs::create_directories(checkpoints / ".step-00000004.tmp");
  clean_up_checkpoints(checkpoints);
  EXPECT_TRUE(fs::exists(checkpoints / "step-00000004/checksums.json"));
  EXPECT_FALSE(fs::exists(checkpoints / ".step-00000004.tmp"));
}

// The signal arrives during validation: the run still saves a checkpoint.
TEST_F(TrainerTest, ASignalDuringValidationSaves) {
  const fs::path run = directory_ / "run";
  const auto backend = make_cpu_backend(1);
  Trainer trainer(*backend, parse_run_config(small_config(corpus_, run,
                                                          "steps: 1000, eval_every: 1, "
                                                          "checkpoint_every: 0"),
                                             "test.yaml", {"train.eval_batches=0"}));
  std::thread sender([&] {
    while (!fs::exists(run / "metrics.jsonl")) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    kill(getpid(), SIGTERM);
  });
  testing::internal::CaptureStdout();
  const RunOutcome outcome = trainer.run(ResumeMode::Auto);
  testing::internal::GetCapturedStdout();
  sender.join();
  EXPECT_EQ(outcome, RunOutcome::Stopped);
  const Json status = Json::parse(read_text_file(run / "status.json"));
  ASSERT_TRUE(status.at("last_checkpoint").is_string());
  const auto state = Json::parse(read_text_file(run / "checkpoints/latest/trainer.json"));
  EXPECT_EQ(state.at("step"), status.at("step"));
}

TEST(CpuThreads, TooManyAreRefused) { EXPECT_THROW(make_cpu_backend(10'000'000), UserError); }

TEST_F(TrainerTest, AnotherModelIsNotContinued) {
  train("run", "steps: 4, eval_every: 0, checkpoint_every: 0");
  EXPECT_THROW(train("run", "steps: 4, eval_every: 0, checkpoint_every: 0", "", {"model.layers=3"}),
               UserError);
  testing::internal::GetCapturedStdout();
}

TEST_F(TrainerTest, ARunThatCannotFitIsRefusedBeforeAnythingIsWritten) {
  const auto backend = make_cpu_backend(1);
  const std::string yaml = small_config(corpus_, directory_ / "huge", "steps: 5");
  try {
    Trainer(*backend, parse_run_config(yaml, "test.yaml",
                                       {"model.hidden_size=16384", "model.layers=40",
                                        "model.heads=128", "model.kv_heads=128"}));
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("this run needs"), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(directory_ / "huge"));
}

// A micro-batch of four million sequences does not fit; the message proposes one that does.
TEST_F(TrainerTest, ARefusalSaysWhatWouldFit) {
  const auto backend = make_cpu_backend(1);
  const std::string yaml = small_config(corpus_, directory_ / "huge", "steps: 5");
  try {
    Trainer(*backend,
            parse_run_config(yaml, "test.yaml", {"batch.global=4194304", "batch.micro=4194304"}));
    FAIL() << "accepted";
  } catch (const UserError& error) {
    const std::string message = error.what();
    const auto at = message.find("batch.micro: ");
    ASSERT_NE(at, std::string::npos) << message;
    EXPECT_NE(message.find("would take"), std::string::npos) << message;
    const std::int64_t micro = std::stoll(message.substr(at + 13));
    Trainer(*backend,  // its own advice is accepted
            parse_run_config(yaml, "test.yaml",
                             {"batch.global=4194304", fmt::format("batch.micro={}", micro),
                              "layout.recompute=full"}));
  }
}

TEST_F(TrainerTest, ShardsAreListedAndReadBack) {
  const auto backend = make_cpu_backend(1);
  const RunConfig config =
      parse_run_config(small_config(corpus_, directory_ / "run", "steps: 2"), "test.yaml");
  Engine engine(*backend, *backend, engine_options(config));
  engine.initialize(1);
  fs::create_directories(directory_ / "checkpoints");
  TrainerState state;
  state.step = 1;
  CheckpointOptions options;
  options.max_shard_bytes = 20000;
  const fs::path saved = save_checkpoint(directory_ / "checkpoints", engine, state, options);
  EXPECT_TRUE(fs::exists(saved / "model.safetensors.index.json"));
  EXPECT_GT(SafetensorsModel(saved).files().size(), 2u);
  Engine again(*backend, *backend, engine_options(config));
  again.prepare();
  EXPECT_EQ(load_checkpoint(saved, again).step, 1);
  std::vector<float> a(static_cast<std::size_t>(engine.sharding().weights().elements())),
      b(a.size());
  backend->download(a.data(), engine.sharding().weights());
  backend->download(b.data(), again.sharding().weights());
  EXPECT_EQ(a, b);
}

// A file-size limit simulates a full disk: the write fails in the middle of a save.
TEST_F(TrainerTest, AFailedSaveLeavesThePreviousCheckpoint) {
  KINTSUGI_SKIP_UNDER_THREAD_SANITIZER();
  const std::string settings = "steps: 8, eval_every: 0, checkpoint_every: 0";
  const fs::path run = train("run", settings);
  const fs::path before = fs::canonical(run / "checkpoints/latest");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{30000, 30000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const fs::path config = directory_.write(
        "again.yaml", small_config(corpus_, run, "steps: 10, eval_every: 0, checkpoint_every: 0"));
    (void)!freopen((directory_ / "out.txt").c_str(), "w", stdout);
    (void)!freopen((directory_ / "err.txt").c_str(), "w", stderr);
    execl(kintsugi_binary().c_str(), "kintsugi", "train", config.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  const std::string message = read_text_file(directory_ / "err.txt");
  EXPECT_NE(message.find("was not saved, earlier ones are unchanged"), std::string::npos)
      << message;
  EXPECT_EQ(fs::canonical(run / "checkpoints/latest"), before);
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  EXPECT_EQ(Json::parse(read_text_file(run / "status.json")).at("state"), "failed");
  EXPECT_EQ(read_metrics(train("run", settings)).size(), 10u);  // still loads; all steps are done
}

TEST_F(TrainerTest, ADirectoryThatCannotBeCreatedIsAFailure) {
  const auto backend = make_cpu_backend(1);
  Trainer trainer(
      *backend, parse_run_config(small_config(corpus_, "/proc/kintsugi", "steps: 2"), "test.yaml"));
  EXPECT_THROW(trainer.run(ResumeMode::Auto), Failure);
}

}  // namespace
}  // namespace kintsugi
