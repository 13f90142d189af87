// Copies of the state in the memory of nodes.
#include "train/checkpoint/memory_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "comm/exchange.h"
#include "core/file.h"
#include "core/hash.h"
#include "support/parallel_run.h"
#include "support/paths.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(MemoryFiles, AreValidOnceTheyAreSealed) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "file";
  const std::string text = "{\"step\": 7}", data(1000, 'x');
  const std::size_t bytes = MemoryFile::bytes_for(100, data.size());
  const MemoryFile::Info info{.fingerprint = 5, .step = 7, .rank = 3, .after = 11};
  {
    MemoryFile file(path, bytes);
    EXPECT_FALSE(file.info());
    std::memcpy(file.begin(text, data.size()), data.data(), data.size());
    EXPECT_FALSE(MemoryFile::peek(path, bytes));
    file.seal(info);
  }
  ASSERT_TRUE(MemoryFile::peek(path, bytes));
  EXPECT_EQ(MemoryFile::peek(path, bytes)->step, 7);
  EXPECT_EQ(MemoryFile::peek(path, bytes)->after, 11u);
  EXPECT_FALSE(MemoryFile::peek(path, bytes + 64));
  EXPECT_FALSE(MemoryFile::peek(directory / "other", bytes));
  MemoryFile file(path, bytes);  // keeps the content
  const auto content = checked_content(file.bytes(), info);
  ASSERT_TRUE(content);
  EXPECT_EQ(content->text, text);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(content->data.data()), content->data.size()),
            data);
  for (const MemoryFile::Info& other :
       {MemoryFile::Info{6, 7, 3}, MemoryFile::Info{5, 8, 3}, MemoryFile::Info{5, 7, 2}})
    EXPECT_FALSE(checked_content(file.bytes(), other));
  // Any flipped bit of the header, the text or the data.
  for (const std::size_t at : {0, 9, 17, 25, 41, 57, 65, 4096, 4106, 4170, 5159}) {
    file.bytes()[at] ^= std::byte{16};
    EXPECT_FALSE(checked_content(file.bytes(), info)) << at;
    file.bytes()[at] ^= std::byte{16};
  }
  EXPECT_TRUE(checked_content(file.bytes(), info));
  file.invalidate();
  EXPECT_FALSE(MemoryFile::peek(path, bytes));
}

struct CopyCase {
  const char* name;
  RankLayout layout;
  bool nodes;  // two ranks per node; otherwise one node
  StateOffload offload = {};
  bool fp8 = false;
};

class MemoryCopiesOf : public testing::TestWithParam<CopyCase> {
 protected:
  MemoryCopies::Options options(int rank) const {
    const std::string node = GetParam().nodes ? fmt::format("node-{}", rank / 2) : "node";
    fs::create_directories(directory_ / node);
    return {.run = "run",
            .configuration = configuration_,
            .node = node,
            .node_ranks = 2,
            .root = directory_ / node};
  }
  Training training() const {
    const bool fp8 = GetParam().fp8;
    Training result{.model = fp8 ? tiny_fp8_model("llama-gqa") : tiny_model("llama-gqa", 4),
                    .precision = DType::BF16,
                    .sequences = 8,
                    .length = fp8 ? 16 : 8,
                    .dropout = 0.1,
                    .offload = GetParam().offload};
    result.optimizer.ema.decay = 0.9;
    return result;
  }
  // Trains four steps, with copies after steps 2, 3 and 4, and then two more.
  Outcome train_and_copy() {
    Outcome outcome;
    on_ranks(GetParam().layout, training(), [&](const Member& member) {
      MemoryCopies copies(member.engine, options(member.world.rank()));
      EXPECT_EQ(copies.has_partner(), GetParam().nodes);
      EXPECT_FALSE(copies.restore(0, {"saved"}));
      copies.open(0);
      for (std::int64_t step = 1; step <= 4; ++step) {
        train(member, step, step, outcome);
        TrainerState state;
        state.step = step;
        state.samples = 100 + step;
        if (step > 1) copies.save(state, "saved");
      }
      train(member, 5, 6, outcome);
    });
    return outcome;
  }
  // Restores and trains up to step 6. Returns the step that was restored; 0: none.
  std::int64_t continue_from_copies(std::int64_t after_step, const std::string& id,
                                    Outcome& outcome) {
    std::int64_t restored = 0;
    on_ranks(
        GetParam().layout, training(),
        [&](const Member& member) {
          member.engine.prepare();
          MemoryCopies copies(member.engine, options(member.world.rank()));
          const std::optional<TrainerState> state = copies.restore(after_step, {"first", id});
          if (member.world.rank() == 0) restored = state ? state->step : 0;
          if (!state) return;
          EXPECT_EQ(state->samples, 100 + state->step);
          train(member, state->step + 1, 6, outcome);
        },
        false);
    return restored;
  }
  std::int64_t restorable(std::int64_t after_step) {
    std::int64_t restored = 0;
    on_ranks(GetParam().layout, training(), [&](const Member& member) {
      member.engine.prepare();
      MemoryCopies copies(member.engine, options(member.world.rank()));
      const std::optional<TrainerState> state = copies.restore(after_step, {"saved"});
      if (member.world.rank() == 0 && state) restored = state->step;
    });
    return restored;
  }
  void expect_end_of(const Outcome& whole, std::int64_t after_step, std::int64_t restored) {
    Outcome outcome;
    EXPECT_EQ(continue_from_copies(after_step, "saved", outcome), restored);
    if (restored == 0) return;
    EXPECT_EQ(outcome.weights, whole.weights);
    EXPECT_EQ(outcome.losses.back(), whole.losses.back());
  }
  std::vector<fs::path> files(const std::string& part) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(directory_.path()))
      if (entry.path().filename().string().find(part) != std::string::npos)
        found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }

  TemporaryDirectory directory_;
  std::string configuration_ = "same";
};

TEST_P(MemoryCopiesOf, ARunContinuesBitForBit) {
  const Outcome whole = train_and_copy();
  expect_end_of(whole, 2, 4);
  expect_end_of(whole, 4, 0);  // the checkpoint is as new
  Outcome none;
  EXPECT_EQ(continue_from_copies(2, "another branch", none), 0);
  configuration_ = "changed";
  EXPECT_EQ(continue_from_copies(2, "saved", none), 0);
  configuration_ = "same";
  // The newest copy of one rank was not finished: all continue from the one before.
  const std::size_t size = fs::file_size(files("rank-1-own-0").front());
  for (const fs::path& file : files("rank-1-"))
    if (MemoryFile::peek(file, size)->step == 4) MemoryFile(file, size).invalidate();
  expect_end_of(whole, 2, 3);
  // The header is valid, but not the content: the copies are not used.
  for (const fs::path& file : files("rank-1-"))
    if (MemoryFile::peek(file, size)) MemoryFile(file, size).bytes()[8192] ^= std::byte{1};
  expect_end_of(whole, 2, 0);
}

TEST_P(MemoryCopiesOf, ALostNodeIsReplacedByTheCopiesOfAnother) {
  const Outcome whole = train_and_copy();
  if (GetParam().nodes) {
    fs::remove_all(directory_ / "node-1");  // ranks 2 and 3 are started on an empty node
    EXPECT_TRUE(files("rank-2-own").empty());
    expect_end_of(whole, 2, 4);
    fs::remove_all(directory_ / "node-0");  // with both, nothing is left
  } else {
    for (const fs::path& file : files("rank-1-")) fs::remove(file);
  }
  expect_end_of(whole, 2, 0);
}

// After a rollback, both generations are used again.
TEST_P(MemoryCopiesOf, CopiesOfLaterStepsAreGivenUp) {
  train_and_copy();
  on_ranks(GetParam().layout, training(), [&](const Member& member) {
    MemoryCopies copies(member.engine, options(member.world.rank()));
    copies.open(3);
    TrainerState state;
    for (state.step = 1; state.step <= 2; ++state.step) copies.save(state, "saved");
  });
  Outcome none;
  EXPECT_EQ(continue_from_copies(3, "saved", none), 0);
  const fs::path file = files("rank-0-own-0").front();
  const std::size_t size = fs::file_size(file);
  std::vector<std::int64_t> steps;
  for (const fs::path& one : files("rank-0-own"))
    steps.push_back(MemoryFile::peek(one, size)->step);
  std::sort(steps.begin(), steps.end());
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 3}));
}

// The same steps were trained twice, with a rollback in between. Rank 1 has the files of before.
TEST_P(MemoryCopiesOf, CopiesOfTwoSeriesAreNotMixed) {
  train_and_copy();
  std::map<fs::path, std::string> before;
  for (const fs::path& file : files("rank-1-")) before[file] = read_text_file(file);
  ASSERT_FALSE(before.empty());
  on_ranks(GetParam().layout, training(), [&](const Member& member) {
    MemoryCopies copies(member.engine, options(member.world.rank()));
    copies.open(2);
    TrainerState state;
    for (state.step = 3; state.step <= 4; ++state.step) copies.save(state, "saved");
  });
  EXPECT_EQ(restorable(2), 4);
  for (const auto& [file, content] : before) write_file_atomically(file, content);
  EXPECT_EQ(restorable(2), 0);
}

TEST_P(MemoryCopiesOf, ARewindGivesAllUp) {
  on_ranks(GetParam().layout, training(), [&](const Member& member) {
    MemoryCopies copies(member.engine, options(member.world.rank()));
    copies.open(0);
    TrainerState state;
    for (state.step = 3; state.step <= 4; ++state.step) copies.save(state, "saved");
    copies.give_up();
  });
  EXPECT_EQ(restorable(0), 0);
}

// Rank 9 was on the node before a restart.
TEST_P(MemoryCopiesOf, FilesOfOtherRanksAreRemoved) {
  train_and_copy();
  const fs::path stray = files("rank-0-own-0").front().parent_path() / "rank-9-own-0";
  const std::size_t expected = files("rank-").size();
  std::ofstream(stray) << "old";
  on_ranks(GetParam().layout, training(), [&](const Member& member) {
    member.engine.prepare();
    MemoryCopies copies(member.engine, options(member.world.rank()));
    EXPECT_TRUE(copies.restore(2, {"saved"}));
    copies.open(4);
    member.engine.groups()[GroupKind::World].barrier();
    EXPECT_TRUE(fs::exists(stray)) << "it may be all that is left";
    member.engine.groups()[GroupKind::World].barrier();
    TrainerState state;
    for (state.step = 5; state.step <= 6; ++state.step) copies.save(state, "saved");
  });
  EXPECT_FALSE(fs::exists(stray));
  EXPECT_EQ(files("rank-").size(), expected);
  std::ofstream(stray) << "old";
  on_ranks(GetParam().layout, training(), [&](const Member& member) {
    MemoryCopies(member.engine, options(member.world.rank())).open(6);
  });
  EXPECT_FALSE(fs::exists(stray));
}

TEST_P(MemoryCopiesOf, ATextThatDoesNotFitIsAFailureOfAllRanks) {
  on_ranks(GetParam().layout, training(), [&](const Member& member) {
    MemoryCopies::Options small = options(member.world.rank());
    small.text_bytes = 100;
    MemoryCopies copies(member.engine, small);
    copies.open(0);
    EXPECT_THROW(copies.save({}, "saved"), SharedFailure);
  });
}

// 25 characters per number, in the longest form of a double.
TEST(MemoryCopiesOfARun, TheTextOfAWindowHasTheReservedSize) {
  TrainerState state;
  state.spikes.losses.assign(65536, -1.2345678901234567e-300);
  EXPECT_LT(state_to_json(state, DType::BF16, -1).size(), 25u * 65536 + 1000);
  EXPECT_EQ(state_from_json(state_to_json(state, DType::BF16, -1), "test"), state);
}

TEST_P(MemoryCopiesOf, AFinishedRunLeavesNothing) {
  train_and_copy();
  EXPECT_FALSE(files("rank-").empty());
  on_ranks(GetParam().layout, training(), [&](const Member& member) {
    MemoryCopies(member.engine, options(member.world.rank())).remove();
  });
  EXPECT_TRUE(files("kintsugi-").empty());
}

INSTANTIATE_TEST_SUITE_P(Layouts, MemoryCopiesOf,
                         testing::Values(CopyCase{"one_node", {.dp = 2, .zero = 1}, false},
                                         CopyCase{"fp8", {.dp = 2}, false, {}, true},
                                         CopyCase{"two_nodes", {.dp = 2, .zero = 3, .pp = 2}, true},
                                         CopyCase{"tensor_and_offload",
                                                  {.dp = 2, .tp = 2},
                                                  true,
                                                  {.on = true, .update = UpdateLocation::Device}}),
                         [](const auto& info) { return std::string(info.param.name); });

// A process that is killed some steps after its only checkpoint.
TEST(MemoryCopiesOfARun, ContinueAKilledProcess) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(200));
  const std::string settings =
      "checkpoint_every: 0, eval_every: 0, memory_copy_every: 1, dropout: 0.1, log_every: 1, "
      "async_save: false, ";  // copies in memory follow a checkpoint that is complete
  const auto yaml = [&](const fs::path& run, const std::string& steps) {
    return small_config(corpus, run.string(), settings + steps, "threads: 2\n");
  };
  const fs::path whole = directory / "whole", run = directory / "run";
  // keep_every saves at step 30 only, so that the process is killed after a checkpoint.
  run_training(yaml(whole, "steps: 59, keep_every: 30"));
  const fs::path file = directory.write("run.yaml", yaml(run, "steps: 59, keep_every: 30"));
  const pid_t child = fork();
  if (child == 0) {
    (void)!freopen((directory / "out.txt").c_str(), "w", stdout);
    execl(kintsugi_binary().c_str(), "kintsugi", "train", file.c_str(), nullptr);
    _exit(127);
  }
  const auto lines = [&] {
    std::ifstream metrics(run / "metrics.jsonl");
    int count = 0;
    for (std::string line; std::getline(metrics, line);) ++count;
    return count;
  };
  while (lines() < 45 && waitpid(child, nullptr, WNOHANG) == 0) std::this_thread::yield();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (fs::exists(run / "checkpoints/step-00000059")) GTEST_SKIP() << "it was too fast";
  const std::string command = fmt::format("'{}' train '{}' > '{}'", kintsugi_binary(),
                                          file.string(), (directory / "again.txt").string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string log = read_text_file(directory / "again.txt");
  EXPECT_THAT(log, HasSubstr("continuing from the copy in memory of step"));
  for (const char* one :
       {"checkpoints/step-00000059/model.safetensors", "checkpoints/step-00000059/trainer.json",
        "checkpoints/state/step-00000059/optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(run / one) == read_text_file(whole / one)) << one;
  const std::string name =
      fmt::format("kintsugi-{}-{}", getuid(), hex64(hash64(fs::weakly_canonical(run).string())));
  EXPECT_FALSE(fs::exists(fs::path("/dev/shm") / name));
}

}  // namespace
}  // namespace kintsugi
