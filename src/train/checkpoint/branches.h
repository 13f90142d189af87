#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "train/checkpoint/folder.h"
#include "train/checkpoint/lineage.h"

namespace kintsugi {

// Branches of checkpoints. Moving `latest` back (a rollback) starts a new branch: the later
// checkpoints stay in the folder, but the run never resumes from them by itself. Only rank 0 calls
// these functions.

// Returns the checkpoint to resume from: the one that `latest` points to or, if that does not
// exist, the newest of its branch. Returns nothing if the folder has no checkpoints. Throws
// UserError if it has some and none can be resumed. Skipped checkpoints are named in warnings. A
// `latest` that was copied as a directory is replaced by a link.
std::optional<std::filesystem::path> find_latest_checkpoint(const std::filesystem::path& folder);

// The same without changing or logging anything.
std::optional<std::filesystem::path> peek_latest_checkpoint(const std::filesystem::path& folder);
// Returns the checkpoint that a user named: a checkpoint, or a run directory, whose latest one it
// is. UserError if there is none, or if it cannot be continued.
std::filesystem::path named_checkpoint(const std::filesystem::path& path);

// Marks all checkpoints that `head`, from which the run resumes, does not descend from as
// abandoned.
void mark_branches(const CheckpointPaths& head);

// Returns the ancestors of the next checkpoint after this one: its ancestors and itself.
std::vector<Ancestor> ancestors_after(const std::filesystem::path& model);
// Returns the sequence number of the next save into this folder.
std::int64_t next_sequence(const std::filesystem::path& folder);

// A file with this name in its state directory marks a checkpoint that is always kept, unless it is
// abandoned.
inline constexpr const char* kKeepMark = "keep";
inline constexpr const char* kKeepText = "The end of a stage.\n";
void keep_always(const std::filesystem::path& model);  // sets the mark, unless it is set

// Removes checkpoints until `keep` are left, including `newest`; 0 keeps all. Removes abandoned
// ones first, then the others in the order in which they were saved. Marked ones do not count.
void remove_old_checkpoints(const CheckpointPaths& newest, std::int64_t keep);

}  // namespace kintsugi
