// The folder of a run's checkpoints: it is repaired after a kill at any time.
#include <gtest/gtest.h>

#include "support/directory_contents.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/branches.h"
#include "train/checkpoint/folder.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public testing::Test {
 protected:
  // Writes directories with a text file instead of tensors.
  void write(const CheckpointPaths& at, const std::string& content) {
    for (const fs::path& directory : {at.model(), at.state()}) {
      fs::create_directories(directory);
      write_file_atomically(directory / "weights", content);
      write_file_atomically(directory / "checksums.json", "{}");
    }
  }
  void save(const std::string& name, const std::string& content, const AfterRename& after = {}) {
    const CheckpointPaths at{folder_, name};
    write(at.with(".tmp"), content);
    publish_checkpoint(at, after);
  }
  // Keeps a copy of the folder as it is now.
  AfterRename snapshot() {
    return [this] {
      const fs::path copy = directory_ / ("moment" + std::to_string(moments_.size()));
      fs::copy(folder_, copy, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      moments_.push_back(copy);
    };
  }
  static std::string content_of(const fs::path& folder, const std::string& name) {
    const CheckpointPaths at{folder, name};
    if (!fs::exists(at.model())) return fs::exists(at.state()) ? "a state alone" : "none";
    const std::string model = read_text_file(at.model() / "weights");
    EXPECT_EQ(model, read_text_file(at.state() / "weights")) << "two saves are mixed";
    return model;
  }
  static void expect_nothing_hidden(const fs::path& folder) {
    for (const auto& [name, content] : directory_contents(folder))
      EXPECT_EQ(name.find(".step"), std::string::npos) << name;
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_ / "checkpoints";
  std::vector<fs::path> moments_;
};

TEST_F(CheckpointFolder, AKillDuringASaveLeavesTheOldOrTheNew) {
  save("step-00000001", "one");
  save("step-00000002", "two", snapshot());
  ASSERT_EQ(moments_.size(), 2u);
  std::vector<std::string> found;
  for (const fs::path& moment : moments_) {
    clean_up_checkpoints(moment);
    found.push_back(content_of(moment, "step-00000002"));
    EXPECT_EQ(content_of(moment, "step-00000001"), "one");
    EXPECT_EQ(find_latest_checkpoint(moment)->filename(), "step-00000001");
    expect_nothing_hidden(moment);
  }
  // The second is complete, even if `latest` does not point to it yet.
  EXPECT_EQ(found, (std::vector<std::string>{"none", "two"}));
}

TEST_F(CheckpointFolder, AKillWhileAStepIsSavedAgainLeavesTheOldOrTheNew) {
  save("step-00000001", "one");
  save("step-00000001", "again", snapshot());
  ASSERT_EQ(moments_.size(), 4u);
  std::vector<std::string> found;
  for (const fs::path& moment : moments_) {
    clean_up_checkpoints(moment);
    found.push_back(content_of(moment, "step-00000001"));
    expect_nothing_hidden(moment);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"one", "one", "one", "again"}));
}

TEST_F(CheckpointFolder, AKillDuringARemovalLeavesNoHalf) {
  save("step-00000001", "one");
  save("step-00000002", "two");
  remove_checkpoint({folder_, "step-00000001"}, snapshot());
  ASSERT_EQ(moments_.size(), 2u);
  // A kill during the deletion.
  fs::copy(moments_.back(), directory_ / "half",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  ASSERT_TRUE(fs::remove(directory_ / "half/.step-00000001.trash/checksums.json"));
  moments_.push_back(directory_ / "half");
  moments_.push_back(folder_);
  for (const fs::path& moment : moments_) {
    clean_up_checkpoints(moment);
    EXPECT_EQ(content_of(moment, "step-00000001"), "none");
    EXPECT_EQ(content_of(moment, "step-00000002"), "two");
    expect_nothing_hidden(moment);
  }
}

// The user moved the model away; its state must not be deleted.
TEST_F(CheckpointFolder, AStateWhoseModelWasMovedAwayStays) {
  save("step-00000001", "one");
  save("step-00000002", "two");
  fs::rename(folder_ / "step-00000001", directory_ / "kept");
  clean_up_checkpoints(folder_);
  EXPECT_TRUE(fs::exists(folder_ / "state/step-00000001/weights"));
}

// A checkpoint in the old format, with its state inside the model directory, is replaced.
TEST_F(CheckpointFolder, AKillWhileAnOldFormatIsReplacedLeavesTheOldOrTheNew) {
  const fs::path model = folder_ / "step-00000001";
  fs::create_directories(model / "optimizer");
  write_file_atomically(model / "optimizer/weights", "inside");
  save("step-00000001", "again", snapshot());
  ASSERT_EQ(moments_.size(), 3u);
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    clean_up_checkpoints(moments_[i]);
    const fs::path state = state_directory(moments_[i] / "step-00000001");
    EXPECT_EQ(read_text_file(state / "weights"), i < 2 ? "inside" : "again");
    EXPECT_EQ(fs::exists(moments_[i] / "state/step-00000001"), i == 2);
    expect_nothing_hidden(moments_[i]);
  }
}

}  // namespace
}  // namespace kintsugi
