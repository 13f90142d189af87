// Saves in the background: the same files as other saves, while the weights already change.
#include "train/checkpoint/background_save.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/file.h"
#include "support/directory_contents.h"
#include "support/errors.h"
#include "support/late_backend.h"
#include "support/parallel_run.h"
#include "support/paths.h"
#include "support/sanitizers.h"
#include "support/small_run.h"
#include "train/trainer/save_policy.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Backend> late_backend(int threads) {
  return std::make_unique<LateBackend>(threads);
}

struct SaveCase {
  const char* name;
  RankLayout layout;
  DType precision = DType::BF16;
  StateOffload offload = {};
  double ema = 0;
  bool fp8 = false;
};

class BackgroundSaveOf : public testing::TestWithParam<SaveCase> {};

// Two steps are trained between the beginning and the end of the save. The backend copies as late
// as it may, so a copy that the optimizer does not wait for has the weights of a later step.
TEST_P(BackgroundSaveOf, WritesTheFilesOfTheStepInWhichItBegan) {
  const TemporaryDirectory directory;
  const fs::path at_once = directory / "at-once", background = directory / "background";
  const bool fp8 = GetParam().fp8;
  Training training{.model = fp8 ? tiny_fp8_model("llama-gqa") : tiny_model("llama-gqa", 4),
                    .precision = GetParam().precision,
                    .sequences = 8,
                    .length = fp8 ? 16 : 8,
                    .offload = GetParam().offload,
                    .backend = late_backend};
  training.optimizer.ema.decay = GetParam().ema;
  on_ranks(GetParam().layout, training, [&](const Member& member) {
    TrainerState state;
    state.step = 2;
    const CheckpointOptions options{.max_shard_bytes = 6000};
    BackgroundSave saver(member.engine);
    for (const std::int64_t step : {1, 2}) member.step(step);
    save_checkpoint(at_once, member.engine, state, options);
    saver.begin(background, state, options);
    member.engine.before_next_update([&] { saver.before_update(); });
    member.step(3);
    saver.after_step();
    member.step(4);
    EXPECT_EQ(saver.finish().model.filename(), "step-00000002");
    EXPECT_FALSE(saver.under_way());
  });
  EXPECT_GT(directory_contents(at_once).size(), 10u);
  EXPECT_TRUE(directory_contents(background) == directory_contents(at_once));
}
INSTANTIATE_TEST_SUITE_P(
    Layouts, BackgroundSaveOf,
    testing::Values(SaveCase{"one_rank", {}}, SaveCase{"tensor", {.tp = 2}},
                    SaveCase{"pipeline", {.pp = 2}},
                    SaveCase{"zero_3", {.dp = 4, .zero = 3, .shard_group = 2}},
                    SaveCase{"replicas", {.dp = 4}, DType::F32, {}, 0.9},
                    SaveCase{"fp8", {.dp = 2, .tp = 2}, DType::BF16, {}, 0.9, true},
                    SaveCase{"all", {.dp = 2, .zero = 1, .tp = 2, .pp = 2}, DType::BF16, {}, 0.9},
                    SaveCase{"offloaded_on_device",
                             {.dp = 2, .zero = 1},
                             DType::BF16,
                             {.on = true, .update = UpdateLocation::Device}},
                    SaveCase{"offloaded_on_host",
                             {.dp = 2, .zero = 2, .tp = 2},
                             DType::F32,
                             {.on = true, .gradients = true, .update = UpdateLocation::Host},
                             0.9}),
    [](const auto& info) { return std::string(info.param.name); });

// A rank that fails in the next step drops its save, also if it had nothing to copy from a device.
TEST(BackgroundSaveOfAFailedRank, IsDropped) {
  const TemporaryDirectory directory;
  Training training{.model = tiny_model("llama-gqa", 2), .sequences = 4, .length = 8};
  on_ranks({.dp = 2}, training, [&](const Member& member) {
    TrainerState state;
    state.step = 2;
    BackgroundSave saver(member.engine);
    saver.begin(directory / "checkpoints", state, {});
  });
  EXPECT_FALSE(fs::exists(directory / "checkpoints/latest"));
}

class BackgroundSaves : public testing::Test {
 protected:
  // Trains and returns the run directory.
  fs::path train(const std::string& name, const std::string& settings,
                 const std::string& keep = "0") {
    std::string text = config(name, settings);
    const std::string given = "keep_checkpoints: 0";
    text.replace(text.find(given), given.size(), "keep_checkpoints: " + keep);
    run_training(text);
    return directory_ / name;
  }
  std::string config(const std::string& name, const std::string& settings) const {
    // The same threads in this process and in the program.
    return small_config(corpus_, (directory_ / name).string(), "eval_every: 0, " + settings,
                        "threads: 2\n");
  }
  static std::vector<std::string> checkpoints(const fs::path& run) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
      if (!entry.is_symlink() && entry.path().filename() != "state")
        names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  static void expect_same(const fs::path& a, const fs::path& b) {
    ASSERT_EQ(checkpoints(a), checkpoints(b));
    for (const std::string& name : checkpoints(a))
      for (const std::string& file :
           {name + "/model.safetensors", name + "/trainer.json",
            "state/" + name + "/optimizer.safetensors", "state/" + name + "/lineage.json"}) {
        const auto content = [&](const fs::path& run) {
          return read_text_file(run / "checkpoints" / file);
        };
        // A lineage has an id made from the configuration, which names the run directory.
        const bool same = file.ends_with("lineage.json")
                              ? content(a).substr(0, 20) == content(b).substr(0, 20)
                              : content(a) == content(b);
        EXPECT_TRUE(same) << file;
      }
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
};

TEST_F(BackgroundSaves, AreThoseOfARunThatStopsForThem) {
  const std::string settings = "steps: 9, checkpoint_every: 1, dropout: 0.1";
  const fs::path run = train("run", settings),
                 stops = train("stops", settings + ", async_save: false");
  EXPECT_EQ(checkpoints(run).size(), 9u);
  expect_same(run, stops);
}

TEST_F(BackgroundSaves, KeepTheCheckpointsOfKeepEvery) {
  const fs::path run = train("run", "steps: 8, checkpoint_every: 2, keep_every: 3", "1");
  EXPECT_THAT(checkpoints(run), ElementsAre("step-00000003", "step-00000006", "step-00000008"));
  EXPECT_EQ(read_text_file(run / "checkpoints/state/step-00000003/keep"), "train.keep_every: 3\n");
  EXPECT_FALSE(fs::exists(run / "checkpoints/state/step-00000008/keep"));
}

// Before the first save, a save is assumed to take 1 s: with failures every nanosecond, the first
// one is due after 45 microseconds, so after the first step.
TEST_F(BackgroundSaves, AreTimedByTheMeanTimeBetweenFailures) {
  const fs::path often = train("often", "steps: 6, checkpoint_every: auto, mtbf: 0.000000001s");
  EXPECT_EQ(checkpoints(often).front(), "step-00000001");
  EXPECT_EQ(checkpoints(often).back(), "step-00000006");
  const fs::path seldom = train("seldom", "steps: 6, checkpoint_every: auto, mtbf: 100d");
  EXPECT_THAT(checkpoints(seldom), ElementsAre("step-00000006"));
}

TEST(SaveIntervals, AreThoseOfYoungAndDaly) {
  EXPECT_NEAR(young_daly_s(40, 7 * 86400.0) / 60, 116, 0.1);
  // 16,384 GPUs in nodes of 8: one interruption per 3 hours.
  EXPECT_NEAR(mtbf_of_nodes_s(2048) / 3600, 54 * 24 / 419.0, 1e-9);
  EXPECT_NEAR(mtbf_of_nodes_s(1), 2048 * mtbf_of_nodes_s(2048), 1e-3);
  const SaveInterval::Clock::time_point start{};
  SaveInterval interval(7 * 86400.0, start);
  EXPECT_TRUE(interval.measured(40, 60));
  EXPECT_NEAR(interval.seconds() / 60, 116, 0.1);
  const auto after = [&](double minutes) {
    return start + std::chrono::milliseconds(static_cast<std::int64_t>(minutes * 60e3));
  };
  EXPECT_FALSE(interval.due(after(115)));
  EXPECT_TRUE(interval.due(after(117)));
  interval.began(after(117));
  EXPECT_FALSE(interval.due(after(230)));
  EXPECT_FALSE(interval.measured(44, 60));  // 5 % more
  EXPECT_TRUE(interval.measured(60, 60));   // 22 % more
  EXPECT_TRUE(interval.measured(1e-4, 12000));
  EXPECT_EQ(interval.seconds(), 12000);  // not more often than a save takes
}

// A process with a limit on the size of its files, as on a full disk.
class OnAFullDisk : public BackgroundSaves {
 protected:
  static constexpr rlim_t kLimit = 30000;  // a model file is larger, metrics are not

  pid_t start(const std::string& name, const std::string& settings) {
    const fs::path file = directory_.write(name + ".yaml", config(name, settings));
    const pid_t child = fork();
    if (child != 0) return child;
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = kLimit;
    setrlimit(RLIMIT_FSIZE, &limit);
    (void)!freopen((directory_ / "out.txt").c_str(), "w", stdout);
    (void)!freopen((directory_ / "err.txt").c_str(), "w", stderr);
    execl(kintsugi_binary().c_str(), "kintsugi", "train", file.c_str(), nullptr);
    _exit(127);
  }
  static int exit_code_of(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string errors() const {
    const fs::path file = directory_ / "err.txt";
    return fs::exists(file) ? read_text_file(file) : "";
  }
};

TEST_F(OnAFullDisk, TheRunEndsAfterTooManyFailedSaves) {
  KINTSUGI_SKIP_UNDER_THREAD_SANITIZER();
  const fs::path run = train("run", "steps: 2, checkpoint_every: 0, max_failed_saves: 2");
  const auto before = directory_contents(run / "checkpoints");
  EXPECT_EQ(exit_code_of(start("run", "steps: 40, checkpoint_every: 4, max_failed_saves: 2")), 1);
  EXPECT_THAT(errors(), HasSubstr("the checkpoint of step 4 was not saved"));
  EXPECT_THAT(errors(), HasSubstr("the run continues and saves again later (1 of 2"));
  EXPECT_THAT(errors(), HasSubstr("the last 2 saves failed, train.max_failed_saves"));
  EXPECT_TRUE(directory_contents(run / "checkpoints") == before);
}

TEST_F(OnAFullDisk, ALastSaveThatFailsIsAnError) {
  KINTSUGI_SKIP_UNDER_THREAD_SANITIZER();
  EXPECT_EQ(exit_code_of(start("run", "steps: 4, checkpoint_every: 0")), 1);
  EXPECT_THAT(errors(), HasSubstr("error: the checkpoint of step 4 was not saved"));
}

// The disk has space again after the first warning: the run has trained on, and ends with the
// result of an undisturbed one.
TEST_F(OnAFullDisk, TheRunContinuesAndSavesAgain) {
  KINTSUGI_SKIP_UNDER_THREAD_SANITIZER();
  const std::string settings = "steps: 60, checkpoint_every: 2, max_failed_saves: 60";
  const pid_t child = start("run", settings);
  for (int i = 0; i < 6000 && errors().find("was not saved") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  rlimit limit{};
  prlimit(child, RLIMIT_FSIZE, nullptr, &limit);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(prlimit(child, RLIMIT_FSIZE, &limit, nullptr), 0);
  EXPECT_EQ(exit_code_of(child), 0) << errors();
  EXPECT_THAT(errors(), HasSubstr("the checkpoint of step 2 was not saved"));
  const fs::path whole = train("whole", settings), run = directory_ / "run";
  EXPECT_LT(checkpoints(run).size(), checkpoints(whole).size());
  const fs::path last = "checkpoints/step-00000060/model.safetensors";
  EXPECT_TRUE(read_text_file(run / last) == read_text_file(whole / last));
}

}  // namespace
}  // namespace kintsugi
