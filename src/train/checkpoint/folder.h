#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

namespace kintsugi {

// The folder of a run's checkpoints:
//
//   step-00000100/         a Hugging Face model, with trainer.json and checksums.json
//   state/step-00000100/   needed only to resume: the optimizer's tensors, with checksums.json
//   latest                 a link to step-00000100, or a file with its name
//
// A checkpoint is its model directory and its state directory. While one is written (.tmp), about
// to be replaced (.old) or being deleted (.trash), both are named .step-00000100.SUFFIX. After a
// kill at any time, clean_up_checkpoints() leaves only complete checkpoints in the folder.
struct CheckpointPaths {
  std::filesystem::path folder;
  std::string name;

  std::filesystem::path model() const { return folder / name; }
  std::filesystem::path state() const { return folder / "state" / name; }
  CheckpointPaths with(const std::string& suffix) const { return {folder, "." + name + suffix}; }
};

std::string checkpoint_name(std::int64_t step);

// Returns the state directory of a model directory. Old checkpoints have it inside, as optimizer/.
std::filesystem::path state_directory(const std::filesystem::path& model);

// Called after each rename: for tests, which check what a kill would leave.
using AfterRename = std::function<void()>;

// Renames the finished .tmp directories to the checkpoint, the state first, and points `latest` to
// it. If that fails, undoes the renames and throws Failure.
void publish_checkpoint(const CheckpointPaths& checkpoint, const AfterRename& after = {});
// Removes the .tmp directories.
void withdraw_checkpoint(const CheckpointPaths& checkpoint);
// Renames, then deletes. Logs a warning if something cannot be removed.
void remove_checkpoint(const CheckpointPaths& checkpoint, const AfterRename& after = {});

// Renames a damaged checkpoint to step-00000100.damaged, and its state too: it is not listed any
// more, and never deleted. Returns the new name. take_back() undoes it.
std::string set_aside(const CheckpointPaths& checkpoint);
void take_back(const CheckpointPaths& checkpoint, const std::string& aside);
// Returns the names that set_aside() gave.
std::vector<std::string> list_damaged(const std::filesystem::path& folder);

// Removes what killed saves and removals left behind, and restores a checkpoint that a killed save
// was about to replace.
void clean_up_checkpoints(const std::filesystem::path& folder);

// Returns every step-… directory, sorted by step.
std::vector<CheckpointPaths> list_checkpoints(const std::filesystem::path& folder);
// Returns why a run cannot resume from it; empty if it is complete.
std::string what_is_missing(const CheckpointPaths& checkpoint);

// `latest` is a link or, on a file system without links, a file that holds the name.
using MakeLink = std::function<void(const std::filesystem::path&, const std::filesystem::path&,
                                    std::error_code&)>;
void point_latest_to(const CheckpointPaths& checkpoint, const MakeLink& make_link = {});

}  // namespace kintsugi
