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
//   state/step-00000100/   what only a resume needs: the optimizer's tensors, with checksums.json
//   latest                 a link to step-00000100, or a file with its name
//
// A checkpoint is its model directory and its state directory. While one is written (.tmp), about
// to be replaced (.old) or being deleted (.trash), both have the name .step-00000100.SUFFIX; after
// a kill at any moment clean_up_checkpoints() leaves whole checkpoints alone in the folder.
struct CheckpointPaths {
  std::filesystem::path folder;
  std::string name;

  std::filesystem::path model() const { return folder / name; }
  std::filesystem::path state() const { return folder / "state" / name; }
  CheckpointPaths with(const std::string& suffix) const { return {folder, "." + name + suffix}; }
};

std::string checkpoint_name(std::int64_t step);

// Where the state of a model directory is. Old checkpoints have it inside, in optimizer/.
std::filesystem::path state_directory(const std::filesystem::path& model);

// Called after each rename: for tests, which look at what a kill would leave.
using AfterRename = std::function<void()>;

// The finished .tmp directories become the checkpoint, the state first, and `latest` points to it;
// or all is as before and Failure is thrown.
void publish_checkpoint(const CheckpointPaths& checkpoint, const AfterRename& after = {});
// Removes the .tmp directories.
void withdraw_checkpoint(const CheckpointPaths& checkpoint);
// Renames, then deletes. What cannot be removed is left with a warning.
void remove_checkpoint(const CheckpointPaths& checkpoint, const AfterRename& after = {});

// Finishes what killed saves and removals left behind, and puts back a checkpoint that a save was
// about to replace.
void clean_up_checkpoints(const std::filesystem::path& folder);

// Every step-… directory, by step.
std::vector<CheckpointPaths> list_checkpoints(const std::filesystem::path& folder);
// Why a run cannot continue from it; empty: nothing is missing.
std::string what_is_missing(const CheckpointPaths& checkpoint);

// `latest` is a link or, where the file system has none, a file that holds the name.
using MakeLink = std::function<void(const std::filesystem::path&, const std::filesystem::path&,
                                    std::error_code&)>;
void point_latest_to(const CheckpointPaths& checkpoint, const MakeLink& make_link = {});

}  // namespace kintsugi
