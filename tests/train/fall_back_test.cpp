// Damaged checkpoints: a run falls back to the one before, by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/file.h"
#include "support/captured_log.h"
#include "support/directory_contents.h"
#include "support/errors.h"
#include "support/small_run.h"
#include "support/thread_world.h"
#include "train/engine_options.h"
#include "train/staged_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

void run_staged(const std::string& yaml, int ranks = 1) {
  run_ranks(ranks, [&](World& world) {
    const auto backend = make_cpu_backend(1);
    const RunConfig config = parse_run_config(yaml, "test.yaml");
    std::optional<Groups> groups;
    const auto groups_of = [&](const RunConfig& stage) -> const Groups& {
      groups.reset();
      return groups.emplace(make_groups(world, grid_of(layout_on(stage, ranks), stage.model)));
    };
    StagedRun run(*backend, config, stage_to_train(config), groups_of, {});
    run.run(ResumeMode::Auto);
  });
}

class FallBack : public testing::Test {
 protected:
  std::string config(const std::string& name) const {
    std::string text =
        small_config(corpus_, (directory_ / name).string(),
                     "steps: 8, checkpoint_every: 2, eval_every: 0, dropout: 0.1", rest_);
    const std::string micro = "micro: 2";
    return text.replace(text.find(micro), micro.size(), "micro: 1");
  }
  CheckpointPaths at(const std::string& name, int step) const {
    return {directory_ / name / "checkpoints", checkpoint_name(step)};
  }
  // A copy of the undisturbed run that was killed after step 6.
  void copy_run(const std::string& name) {
    fs::copy(directory_ / "whole", directory_ / name,
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    fs::remove_all(at(name, 8).model());
    fs::remove_all(at(name, 8).state());
    point_latest_to(at(name, 6));
  }
  static void flip(const fs::path& file) {
    std::string content = read_text_file(file);
    content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 4);
    write_file_atomically(file, content);
  }
  static void cut(const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); }
  void expect_same_end(const std::string& name) const {
    for (const int step : {6, 8}) {
      const CheckpointPaths whole = at("whole", step), run = at(name, step);
      for (const auto& [a, b] :
           {std::pair(whole.model() / "model.safetensors", run.model() / "model.safetensors"),
            std::pair(whole.state() / "optimizer.safetensors",
                      run.state() / "optimizer.safetensors")})
        EXPECT_TRUE(read_text_file(a) == read_text_file(b)) << b;
    }
    EXPECT_EQ(fs::read_symlink(directory_ / name / "checkpoints/latest"), "step-00000008");
  }

  TemporaryDirectory directory_;
  std::string corpus_ = directory_.write("corpus.txt", small_corpus(200));
  std::string rest_;
};

TEST_F(FallBack, TheRunContinuesFromTheOneBeforeAndEndsAsUndisturbed) {
  const CapturedLog quiet;
  run_staged(config("whole"));
  struct Damage {
    std::string name;
    std::function<void(const CheckpointPaths&)> make;
    std::string file;
  };
  for (const Damage& damage : std::vector<Damage>{
           {"cut", [](const auto& one) { cut(one.model() / "model.safetensors"); },
            "model.safetensors"},
           {"flipped", [](const auto& one) { flip(one.state() / "optimizer.safetensors"); },
            "optimizer.safetensors"},
           {"missing", [](const auto& one) { fs::remove(one.model() / "model.safetensors"); },
            "model.safetensors is missing"},
           {"trainer", [](const auto& one) { cut(one.model() / "trainer.json"); }, "trainer.json"},
           {"empty", [](const auto& one) { fs::resize_file(one.model() / "config.json", 0); },
            "config.json"},
           {"list", [](const auto& one) { fs::resize_file(one.state() / "checksums.json", 99); },
            "checksums.json"},
           {"state", [](const auto& one) { fs::remove_all(one.state()); },
            "the optimizer's state"}}) {
    SCOPED_TRACE(damage.name);
    copy_run(damage.name);
    damage.make(at(damage.name, 6));
    const bool with_state = fs::exists(at(damage.name, 6).state());
    const CapturedLog log;
    run_staged(config(damage.name));
    EXPECT_THAT(log.warnings(),
                AllOf(HasSubstr(damage.file), HasSubstr("step-00000006 was renamed to "
                                                        "step-00000006.damaged, and the run "
                                                        "continues from step-00000004")));
    expect_same_end(damage.name);
    const fs::path folder = directory_ / damage.name / "checkpoints";
    EXPECT_TRUE(fs::exists(folder / "step-00000006.damaged"));
    EXPECT_EQ(fs::exists(folder / "state/step-00000006.damaged"), with_state);
  }
}

// Two damaged ones in a row, on two ranks that decide together.
TEST_F(FallBack, SeveralRanksFallBackTogether) {
  const CapturedLog log;
  rest_ = "layout: {zero: 3}\n";
  run_staged(config("whole"), 2);
  copy_run("run");
  flip(at("run", 6).model() / "model.safetensors");
  fs::remove(at("run", 4).state() / "optimizer.safetensors");
  run_staged(config("run"), 2);
  EXPECT_THAT(log.warnings(), HasSubstr("continues from step-00000004"));
  EXPECT_THAT(log.warnings(), HasSubstr("continues from step-00000002"));
  expect_same_end("run");
  // The next damaged one of the same step has another name.
  flip(at("run", 8).model() / "model.safetensors");
  fs::create_directories(directory_ / "run/checkpoints/step-00000008.damaged");
  run_staged(config("run"), 2);
  EXPECT_TRUE(fs::exists(directory_ / "run/checkpoints/step-00000008.damaged-2/config.json"));
  expect_same_end("run");
}

// A file that exists and cannot be read may be intact: a link to itself gives ELOOP.
TEST_F(FallBack, AnErrorOfTheFileSystemRenamesNothing) {
  const CapturedLog log;
  run_staged(config("whole"));
  for (const char* name : {"model.safetensors", "config.json"}) {
    SCOPED_TRACE(name);
    const std::string run = std::string("run-") + name;
    copy_run(run);
    const fs::path file = at(run, 6).model() / name, kept = directory_ / (run + "-kept");
    fs::rename(file, kept);
    fs::create_symlink(file, file);
    try {
      run_staged(config(run));
      ADD_FAILURE() << "it was read";
    } catch (const SharedFailure& error) {
      EXPECT_THAT(error.what(), HasSubstr(file.string()));
    }
    EXPECT_TRUE(list_damaged(directory_ / run / "checkpoints").empty());
    fs::rename(kept, file);
    run_staged(config(run));
    expect_same_end(run);
  }
}

// Before a checkpoint is set aside, other ranks look at the file that one rank has named.
TEST_F(FallBack, TheNamedFileIsCheckedAgain) {
  const CapturedLog log;
  run_staged(config("whole"));
  const fs::path model = at("whole", 6).model(), state = at("whole", 6).state();
  const auto damaged = [&](const fs::path& file) { return is_still_damaged(model, file); };
  const std::vector<fs::path> named = {model / "model.safetensors", model / "trainer.json",
                                       state / "optimizer.safetensors"};
  for (const fs::path& file : named) EXPECT_FALSE(damaged(file)) << file;
  for (const fs::path& file : named) {
    const std::string before = read_text_file(file);
    flip(file);
    EXPECT_TRUE(damaged(file)) << file;
    EXPECT_FALSE(damaged(model / "config.json"));
    write_file_atomically(file, before);
    cut(file);
    EXPECT_TRUE(damaged(file)) << file;
    fs::remove(file);
    EXPECT_TRUE(damaged(file)) << file;
    write_file_atomically(file, before);
    EXPECT_FALSE(damaged(file)) << file;
  }
  fs::resize_file(state / "checksums.json", 99);
  EXPECT_TRUE(damaged(state / "checksums.json"));
}

TEST_F(FallBack, IfNoneIsGoodNothingChanges) {
  const CapturedLog log;
  run_staged(config("whole"));
  copy_run("run");
  for (const int step : {2, 4, 6}) flip(at("run", step).model() / "model.safetensors");
  EXPECT_THAT(user_error_of([&] { run_staged(config("run")); }),
              AllOf(HasSubstr("step-00000002/model.safetensors does not match its checksum"),
                    HasSubstr("no other checkpoint")));
  const auto before = directory_contents(directory_ / "run/checkpoints");
  EXPECT_TRUE(before.contains("step-00000002/model.safetensors"));
  EXPECT_TRUE(before.contains("step-00000004.damaged/model.safetensors"));
  EXPECT_THAT(user_error_of([&] { run_staged(config("run")); }), HasSubstr("no other checkpoint"));
  EXPECT_TRUE(directory_contents(directory_ / "run/checkpoints") == before);
  // It does not start again from the beginning either.
  fs::remove_all(at("run", 2).model());
  fs::remove_all(at("run", 2).state());
  EXPECT_THAT(user_error_of([&] { run_staged(config("run")); }),
              HasSubstr("holds only damaged checkpoints"));
}

// The checkpoint before may belong to the stage before: the whole run starts again there.
TEST_F(FallBack, AStageIsTrainedAgain) {
  const CapturedLog log;
  const auto staged = [&](const std::string& name) {
    std::string text = config(name);
    const std::string steps = "steps: 8, ";
    text.replace(text.find(steps), steps.size(), "");
    return text + "stages:\n  - {name: first, steps: 4}\n  - {name: second, steps: 4}\n";
  };
  run_staged(staged("whole"));
  copy_run("run");
  flip(at("run", 6).model() / "model.safetensors");
  run_staged(staged("run"));  // from the end of the first stage
  expect_same_end("run");
  copy_run("again");
  flip(at("again", 6).model() / "model.safetensors");
  cut(at("again", 4).model() / "trainer.json");
  // The process does not know the layout of a stage that was finished when it was started.
  EXPECT_THROW(run_staged(staged("again")), SharedFailure);
  run_staged(staged("again"));
  EXPECT_THAT(log.warnings(), HasSubstr("continues from step-00000002"));
  expect_same_end("again");
}

}  // namespace
}  // namespace kintsugi
