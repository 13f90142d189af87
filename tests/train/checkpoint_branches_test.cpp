// Which checkpoint a run continues from, also after a rollback and after a copy without links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/temporary_directory.h"
#include "train/checkpoint/branches.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointBranches : public testing::Test {
 protected:
  CheckpointPaths at(int step) const { return {folder_, checkpoint_name(step)}; }

  // Writes the checkpoint of a run that resumed from the checkpoint of step `parent`; 0: a new run.
  void save(int step, int parent, const std::string& weights = "weights") {
    const std::vector<Ancestor> ancestors =
        parent == 0 ? std::vector<Ancestor>{} : ancestors_after(at(parent).model());
    const CheckpointPaths finished = at(step).with(".tmp");
    fs::create_directories(finished.model());
    fs::create_directories(finished.state());
    write_file_atomically(finished.model() / "checksums.json", weights);
    write_file_atomically(finished.model() / "trainer.json",
                          "{\"step\": " + std::to_string(step) + "}");
    write_file_atomically(finished.state() / "checksums.json", weights);
    write_file_atomically(finished.state() / "lineage.json",
                          to_json(child_lineage(ancestors, next_sequence(folder_), weights)));
    publish_checkpoint(at(step));
  }
  void roll_back_to(int step) {
    point_latest_to(at(step));
    mark_branches(at(step));  // as a run that resumes from it does
  }
  std::string found() const {
    const auto path = find_latest_checkpoint(folder_);
    return path ? path->filename().string() : "none";
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const CheckpointPaths& one : list_checkpoints(folder_)) all.push_back(one.name);
    return all;
  }
  void remove(int step) {
    fs::remove_all(at(step).model());
    fs::remove_all(at(step).state());
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_ / "checkpoints";
  CapturedLog log_;
};

TEST_F(CheckpointBranches, AFallbackAfterARollbackStaysOnTheNewBranch) {
  save(100, 0);
  save(200, 100);
  save(300, 200);
  save(400, 300);
  roll_back_to(100);
  save(200, 100, "others");
  save(250, 200, "others");
  EXPECT_EQ(found(), "step-00000250");
  remove(250);  // found damaged, and deleted
  EXPECT_EQ(found(), "step-00000200");
  remove(200);
  EXPECT_EQ(found(), "step-00000100");
  fs::remove(folder_ / "latest");
  EXPECT_EQ(found(), "step-00000100");
  EXPECT_THAT(log_.warnings(), HasSubstr("latest is missing: the run continues from"));
}

// `latest` was moved back, no step was trained since, and its checkpoint is deleted.
TEST_F(CheckpointBranches, AFallbackDoesNotTakeADescendantOfWhatWasRolledBackTo) {
  save(100, 0);
  save(200, 100);
  save(300, 200);
  point_latest_to(at(200));
  remove(200);
  EXPECT_EQ(found(), "step-00000100");
}

TEST_F(CheckpointBranches, WhoPointsLatestToAnAbandonedBranchContinuesIt) {
  save(100, 0);
  save(200, 100);
  roll_back_to(100);
  save(150, 100);
  roll_back_to(200);
  EXPECT_EQ(found(), "step-00000200");
  fs::remove(folder_ / "latest");
  EXPECT_EQ(found(), "step-00000200");
}

TEST_F(CheckpointBranches, AbandonedCheckpointsGoFirstThenTheOldest) {
  for (const int step : {100, 200, 300, 400}) save(step, step - 100);
  roll_back_to(100);
  save(150, 100);
  remove_old_checkpoints(at(150), 2);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000100", "step-00000150"}));
  save(200, 150);
  remove_old_checkpoints(at(200), 2);
  EXPECT_EQ(names(), (std::vector<std::string>{"step-00000150", "step-00000200"}));
}

// Checkpoints of versions without a lineage are ordered by name.
TEST_F(CheckpointBranches, OlderCheckpointsComeBeforeAndInOrder) {
  for (const int step : {100, 200, 300}) {
    save(step, 0);
    fs::remove(at(step).state() / "lineage.json");
  }
  fs::remove(folder_ / "latest");
  EXPECT_EQ(found(), "step-00000300");
  roll_back_to(200);
  fs::remove(folder_ / "latest");
  EXPECT_EQ(found(), "step-00000200");
  save(250, 200);
  fs::remove(folder_ / "latest");
  EXPECT_EQ(found(), "step-00000250");
}

TEST_F(CheckpointBranches, ASkippedCheckpointIsNamedWithTheReason) {
  save(100, 0);
  save(200, 100);
  fs::remove(at(200).model() / "checksums.json");
  EXPECT_EQ(found(), "step-00000100");
  EXPECT_THAT(log_.warnings(),
              HasSubstr(at(200).model().string() + " is skipped: it has no checksums.json"));
  EXPECT_THAT(log_.warnings(), HasSubstr("points to step-00000200, which cannot be loaded"));
}

// The run must not silently start from step 0.
TEST_F(CheckpointBranches, AFolderWithNothingToContinueFromIsRefused) {
  EXPECT_EQ(found(), "none");
  save(100, 0);
  fs::remove(at(100).model() / "checksums.json");
  EXPECT_THAT(user_error_of([&] { found(); }),
              AllOf(HasSubstr("none to continue from"), HasSubstr("step-00000100"),
                    HasSubstr("no checksums.json")));
}

// cp -rL
TEST_F(CheckpointBranches, ALatestThatWasCopiedAsADirectoryBecomesALinkAgain) {
  save(100, 0);
  save(200, 100);
  fs::remove(folder_ / "latest");
  fs::copy(at(200).model(), folder_ / "latest", fs::copy_options::recursive);
  EXPECT_EQ(found(), "step-00000200");
  EXPECT_EQ(fs::read_symlink(folder_ / "latest"), "step-00000200");
  EXPECT_TRUE(fs::exists(folder_ / "latest-copy/trainer.json"));  // nothing is deleted
  save(300, 200);
  EXPECT_EQ(found(), "step-00000300");
}

TEST_F(CheckpointBranches, ALatestThatIsTheOnlyCopyBecomesTheCheckpoint) {
  save(100, 0);
  fs::remove(folder_ / "latest");
  fs::rename(at(100).model(), folder_ / "latest");
  EXPECT_EQ(found(), "step-00000100");
  EXPECT_EQ(fs::read_symlink(folder_ / "latest"), "step-00000100");
}

TEST_F(CheckpointBranches, ALatestDirectoryThatDiffersIsRefused) {
  save(100, 0);
  fs::remove(folder_ / "latest");
  fs::copy(at(100).model(), folder_ / "latest", fs::copy_options::recursive);
  write_file_atomically(folder_ / "latest/checksums.json", "others");
  EXPECT_THAT(user_error_of([&] { found(); }), HasSubstr("differs from step-00000100"));
  EXPECT_TRUE(fs::exists(folder_ / "latest/trainer.json"));
}

TEST_F(CheckpointBranches, WhereThereAreNoLinksLatestIsAFile) {
  save(100, 0);
  save(200, 100);
  point_latest_to(at(100), [](const fs::path&, const fs::path&, std::error_code& error) {
    error = std::make_error_code(std::errc::operation_not_permitted);
  });
  EXPECT_FALSE(fs::is_symlink(folder_ / "latest"));
  EXPECT_EQ(found(), "step-00000100");
}

}  // namespace
}  // namespace kintsugi
