// Saves that fail on one of many ranks, and damaged checkpoints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "support/directory_contents.h"
#include "support/parallel_run.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

Training small_training() {
  return {.model = tiny_model("gpt2", 2), .precision = DType::BF16, .sequences = 6};
}

TrainerState state_at(std::int64_t step) {
  TrainerState state;
  state.step = step;
  return state;
}

CheckpointOptions small_files() {
  CheckpointOptions options;
  options.keep = 0;
  options.max_shard_bytes = 4000;
  return options;
}

// A World that calls a function on one rank each time that rank has waited for a collective.
class MeddlingWorld : public World {
 public:
  MeddlingWorld(World& inner, int meddler, std::function<void()> after)
      : World(inner.place()), inner_(inner), meddler_(meddler), after_(std::move(after)) {}
  std::unique_ptr<Communicator> split(const std::string& name, int color, int key) override {
    auto group = inner_.split(name, color, key);
    if (name != "checkpoint" || rank() != meddler_) return group;
    return std::make_unique<Meddler>(std::move(group), after_);
  }

 private:
  class Meddler : public ForwardingCommunicator {
   public:
    Meddler(std::unique_ptr<Communicator> inner, const std::function<void()>& after)
        : ForwardingCommunicator(std::move(inner)), after_(after) {}
    void wait(Work work) override {
      inner_->wait(work);
      after_();
    }

   private:
    const std::function<void()>& after_;
  };

  World& inner_;
  int meddler_;
  std::function<void()> after_;
};

class CheckpointDamage : public testing::Test {
 protected:
  using Messages = std::vector<std::string>;  // by rank

  // Returns the error message of each rank's call.
  template <class Error, class F>
  Messages errors_of(const F& call, int meddler = -1, std::function<void()> after = {}) {
    Messages messages(static_cast<std::size_t>(layout_.ranks()));
    std::vector<std::unique_ptr<MeddlingWorld>> worlds(messages.size());
    on_ranks(
        layout_, small_training(),
        [&](const Member& member) {
          try {
            call(member.engine);
          } catch (const Error& error) {
            messages[static_cast<std::size_t>(member.world.rank())] = error.what();
          }
        },
        true,
        [&](World& world) -> World& {
          auto& meddling = worlds[static_cast<std::size_t>(world.rank())];
          meddling = std::make_unique<MeddlingWorld>(world, meddler, after);
          return *meddling;
        });
    return messages;
  }
  Messages save(std::int64_t step, int meddler = -1, std::function<void()> after = {}) {
    return errors_of<Failure>(
        [&](Engine& engine) {
          save_checkpoint(checkpoints_, engine, state_at(step), small_files());
        },
        meddler, std::move(after));
  }
  Messages load(const fs::path& directory) {
    return errors_of<UserError>([&](Engine& engine) { load_checkpoint(directory, engine); });
  }
  static void expect_none(const Messages& messages, const char* what) {
    for (const std::string& message : messages) EXPECT_EQ(message, "") << what;
  }
  // Checks that all ranks report the same error, with this text.
  static void expect_all(const Messages& messages, const std::string& part,
                         const std::string& what) {
    for (const std::string& message : messages) {
      EXPECT_NE(message.find(part), std::string::npos) << what << ": '" << message << "'";
      EXPECT_EQ(message, messages[0]) << what;
    }
  }

  // Saves `step`. Then each rank in turn fails to write the same or the next step: all ranks must
  // fail and no file may change. Then saves again.
  void expect_failing_saves(std::int64_t first) {
    expect_none(save(first), "a good save");
    const auto before = directory_contents(checkpoints_);
    ASSERT_TRUE(before.contains("latest"));
    for (const std::int64_t step : {first, first + 1})
      for (int rank = 0; rank < layout_.ranks(); ++rank) {
        const fs::path temporary =
            CheckpointPaths{checkpoints_, checkpoint_name(step)}.with(".tmp").model();
        int waits = 0;
        const Messages messages = save(step, rank, [&] {
          if (++waits == 1) fs::remove_all(temporary);
        });
        expect_all(messages, fmt::format("the checkpoint of step {} was not saved", step),
                   fmt::format("rank {}", rank));
        EXPECT_EQ(directory_contents(checkpoints_), before) << "step " << step << ", rank " << rank;
      }
    expect_none(save(first + 1), "the next good save");
    EXPECT_EQ(fs::canonical(checkpoints_ / "latest"),
              fs::canonical(checkpoints_ / fmt::format("step-{:08}", first + 1)));
  }

  // Flips bits in every file of one directory of a checkpoint. Returns the number of files.
  std::size_t expect_damage_is_found(const CheckpointPaths& step, const fs::path& directory) {
    std::mt19937 random(5);
    std::size_t files = 0;
    for (const auto& [name, content] : directory_contents(directory)) {
      ++files;
      const bool list = name == "checksums.json";
      std::vector<std::size_t> positions = {0, content.size() - 2};
      for (int i = 0; i < (list ? 60 : 3); ++i)
        positions.push_back(random() % (content.size() - 1));
      if (list) positions.push_back(content.find("xxh3") + 3);
      for (const std::size_t at : positions) {
        std::string damaged = content;
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
        std::ofstream(directory / name, std::ios::binary) << damaged;
        // A damaged checksums.json may report an intact file.
        expect_all(load(step.model()), list ? "step-00000004" : name,
                   fmt::format("{} at {}", name, at));
      }
      for (const std::string& changed : {content.substr(0, content.size() - 1), content + "x"}) {
        if (list && changed.size() > content.size()) continue;  // JSON may end in white space only
        std::ofstream(directory / name, std::ios::binary) << changed;
        if (!list) expect_all(load(step.model()), name, name + ", another length");
      }
      fs::remove(directory / name);
      expect_all(load(step.model()), name + " is missing", name + ", missing");
      std::ofstream(directory / name, std::ios::binary) << content;
    }
    return files;
  }

  TemporaryDirectory directory_;
  fs::path checkpoints_ = directory_ / "checkpoints";
  RankLayout layout_{3, 3};
};

// The files of a save are deleted before one rank opens the first of them.
TEST_F(CheckpointDamage, ASaveThatFailsOnOneRankFailsOnAll) {
  expect_failing_saves(4);
  fs::remove_all(checkpoints_);
  // Tensor ranks all-gather columns while they write: no rank may wait for the one that failed.
  layout_ = {.dp = 2, .zero = 1, .tp = 2, .pp = 2};
  expect_failing_saves(4);
}

TEST_F(CheckpointDamage, ASaveWithoutAPlaceFailsOnAllRanks) {
  directory_.write("checkpoints", "a file");
  expect_all(save(4), "rank 0: cannot create", "a file in the way");
  EXPECT_EQ(directory_contents(directory_.path()).size(), 1u);
}

// `latest` cannot be moved: the renames are undone.
TEST_F(CheckpointDamage, ASaveThatCannotBePublishedIsTakenBack) {
  save(4);
  fs::remove(checkpoints_ / "latest");
  fs::create_directories(checkpoints_ / "latest/something");
  const auto before = directory_contents(checkpoints_);
  for (const std::int64_t step : {4, 5}) {  // the same step with other weights, and the next
    const Messages messages = errors_of<Failure>([&](Engine& engine) {
      engine.initialize(99);
      save_checkpoint(checkpoints_, engine, state_at(step), small_files());
    });
    expect_all(messages, "was not saved", "latest is in the way");
    EXPECT_EQ(directory_contents(checkpoints_), before);
  }
}

TEST_F(CheckpointDamage, AFlippedBitIsFoundAndNamedOnAllRanks) {
  save(4);
  const CheckpointPaths step{checkpoints_, "step-00000004"};
  expect_none(load(step.model()), "undamaged");
  const std::size_t files =
      expect_damage_is_found(step, step.model()) + expect_damage_is_found(step, step.state());
  EXPECT_GT(files, 8u);
  expect_none(load(step.model()), "whole again");
}

}  // namespace
}  // namespace kintsugi
