#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "train/checkpoint/folder.h"
#include "train/checkpoint/lineage.h"

namespace kintsugi {

// Who moves `latest` back starts a new branch: the checkpoints after it stay in the folder, but the
// run never goes on from them by itself. These functions are rank 0's.

// The checkpoint to continue from: the one that `latest` points to or, where that is not there, the
// newest of the branch that it was on. None in a folder without checkpoints; UserError where there
// are some and none can be continued. Checkpoints that are passed over are named in warnings. A
// `latest` that was copied as a directory becomes a link again.
std::optional<std::filesystem::path> find_latest_checkpoint(const std::filesystem::path& folder);

// The run goes on from this checkpoint: whatever it does not descend from is marked as abandoned.
void mark_branches(const CheckpointPaths& head);

// Of what is saved after this one was loaded or saved: its own ancestors, and itself.
std::vector<Ancestor> ancestors_after(const std::filesystem::path& model);
// Of the next save into this folder.
std::int64_t next_sequence(const std::filesystem::path& folder);

// Until `keep` are left with `newest`; 0 keeps all. Abandoned ones go first, then the others in the
// order in which they were saved.
void remove_old_checkpoints(const CheckpointPaths& newest, std::int64_t keep);

}  // namespace kintsugi
