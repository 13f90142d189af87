#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/folder.h"

namespace kintsugi {

// A checkpoint that another one descends from. Names repeat after a rollback, ids do not.
struct Ancestor {
  std::string name, id;
  bool operator==(const Ancestor&) const = default;
};

// The ancestors of a checkpoint, stored in lineage.json of its state directory. Checkpoints of
// older versions have no such file: sequence 0 and no id.
struct Lineage {
  std::int64_t sequence = 0;  // counts the saves into a folder, over all branches
  std::string id;
  std::vector<Ancestor> ancestors;  // the last kMostAncestors; the parent is the last
  bool operator==(const Lineage&) const = default;

  bool descends_from(const Ancestor& other) const;
};
constexpr std::size_t kMostAncestors = 1000;

// `content` distinguishes the child from its siblings; it is hashed into the id.
Lineage child_lineage(const std::vector<Ancestor>& ancestors, std::int64_t sequence,
                      const std::string& content);

std::string to_json(const Lineage& lineage);
Lineage read_lineage(const std::filesystem::path& state);

// Branches of checkpoints. Moving `latest` back (a rollback) starts a new branch: the later
// checkpoints stay in the folder, but the run never resumes from them by itself. Only rank 0 calls
// these functions.

// Returns the checkpoint to resume from: the one that `latest` points to or, if that does not
// exist, the newest of its branch. Returns nothing if the folder has no checkpoints. Throws
// UserError if it has some and none can be resumed. Skipped checkpoints are named in warnings. A
// `latest` that was copied as a directory is replaced by a link.
std::optional<std::filesystem::path> find_latest_checkpoint(const std::filesystem::path& folder);

// The same with its warnings and errors, but without changing anything.
std::optional<std::filesystem::path> look_for_latest_checkpoint(
    const std::filesystem::path& folder);

// Sets a damaged checkpoint of the run aside and points `latest` to the newest of its branch that
// is left, whose name it returns. If none is left, changes nothing and returns "". `damage`
// describes what is damaged.
std::string fall_back(const CheckpointPaths& damaged, const std::string& damage);

// The same checkpoint without changing or logging anything; nothing if none can be resumed.
std::optional<std::filesystem::path> peek_latest_checkpoint(const std::filesystem::path& folder);
// The checkpoints that the run may continue from: that one first, then those it would fall back to.
std::vector<std::filesystem::path> peek_checkpoints(const std::filesystem::path& folder);
// Returns the checkpoint that a user named: a checkpoint, or a run directory, whose latest one it
// is. UserError if there is none, or if it cannot be continued.
std::filesystem::path named_checkpoint(const std::filesystem::path& path);

// Marks all checkpoints that `head`, from which the run resumes, does not descend from as
// abandoned.
void mark_branches(const CheckpointPaths& head);

// Returns the ancestors of the next checkpoint after this one: its ancestors and itself.
std::vector<Ancestor> ancestors_after(const std::filesystem::path& model);
// Whether no checkpoint of its folder was saved after this one.
bool is_last_saved(const CheckpointPaths& checkpoint);
// Returns the sequence number of the next save into this folder.
std::int64_t next_sequence(const std::filesystem::path& folder);

// A file with this name in its state directory marks a checkpoint that is always kept, unless it is
// abandoned.
inline constexpr const char* kKeepMark = "keep";
inline constexpr const char* kEndOfStage = "The end of a stage.";
void keep_always(const std::filesystem::path& model);  // marks the end of a stage

// Removes checkpoints until `keep` are left, including `newest`; 0 keeps all. Removes abandoned
// ones first, then the others in the order in which they were saved. Marked ones do not count.
void remove_old_checkpoints(const CheckpointPaths& newest, std::int64_t keep);

}  // namespace kintsugi
