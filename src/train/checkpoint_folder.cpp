#include "train/checkpoint_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// Renames that are taken back, the last first, if a later one fails.
class Renames {
 public:
  explicit Renames(const AfterRename& after) : after_(after) {}

  void operator()(const fs::path& from, const fs::path& to) {
    if (::rename(from.c_str(), to.c_str()) != 0)
      failure("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
    done_.emplace_back(from, to);
    if (after_) after_();
  }
  void undo() {
    std::error_code ignored;
    for (auto it = done_.rbegin(); it != done_.rend(); ++it)
      fs::rename(it->second, it->first, ignored);
  }

 private:
  const AfterRename& after_;
  std::vector<std::pair<fs::path, fs::path>> done_;
};

void delete_directory(const fs::path& directory) {
  std::error_code error;
  fs::remove_all(directory, error);
  if (error) log_warning("cannot remove {}: {}", directory.string(), error.message());
}

// The state before the model: a model without its state could not be continued.
void delete_both(const CheckpointPaths& checkpoint) {
  delete_directory(checkpoint.state());
  delete_directory(checkpoint.model());
}

void point_latest_to(const CheckpointPaths& checkpoint) {
  const fs::path link = checkpoint.folder / ".latest.tmp";
  std::error_code ignored;
  fs::remove(link, ignored);
  fs::create_directory_symlink(checkpoint.name, link);
  if (::rename(link.c_str(), (checkpoint.folder / "latest").c_str()) != 0)
    failure("cannot move {} to {}: {}", (checkpoint.folder / "latest").string(), checkpoint.name,
            std::strerror(errno));
}

bool is_checkpoint_name(const std::string& name) {
  const std::string prefix = "step-";
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         std::all_of(name.begin() + prefix.size(), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<CheckpointPaths> complete_checkpoints(const fs::path& folder) {
  std::vector<CheckpointPaths> found;
  for (const std::string& name : names_in(folder))
    if (is_checkpoint_name(name) && fs::exists(folder / name / "checksums.json"))
      found.push_back({folder, name});
  return found;
}

// "step-00000100" of ".step-00000100.old".
std::string name_without_suffix(const std::string& name, const std::string& suffix) {
  if (!name.starts_with(".") || !name.ends_with(suffix) || name.size() < suffix.size() + 1)
    return "";
  const std::string bare = name.substr(1, name.size() - 1 - suffix.size());
  return is_checkpoint_name(bare) ? bare : "";
}

// A save was killed after it had moved this one away and before the new one was in place. Every
// order of kills leads here again: the model's return is the last step.
void put_back(const CheckpointPaths& checkpoint) {
  const CheckpointPaths old = checkpoint.with(".old"), trash = checkpoint.with(".trash");
  Renames rename({});
  if (fs::exists(old.state())) {
    delete_directory(trash.state());
    if (fs::exists(checkpoint.state())) rename(checkpoint.state(), trash.state());
    rename(old.state(), checkpoint.state());
  } else if (fs::exists(old.model() / "optimizer")) {
    delete_directory(checkpoint.state());  // the new one's: this one has its own inside
  }
  rename(old.model(), checkpoint.model());
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

fs::path state_directory(const fs::path& model) {
  const fs::path inside = model / "optimizer";
  if (fs::exists(inside)) return inside;
  return CheckpointPaths{model.parent_path(), model.filename().string()}.state();
}

void publish_checkpoint(const CheckpointPaths& checkpoint, const AfterRename& after) {
  const CheckpointPaths old = checkpoint.with(".old"), finished = checkpoint.with(".tmp");
  delete_both(old);
  Renames rename(after);
  try {
    // The same step, saved again.
    if (fs::exists(checkpoint.model())) rename(checkpoint.model(), old.model());
    if (fs::exists(checkpoint.state())) rename(checkpoint.state(), old.state());
    rename(finished.state(), checkpoint.state());
    sync_directory(checkpoint.folder / "state");
    rename(finished.model(), checkpoint.model());
    sync_directory(checkpoint.folder);
    point_latest_to(checkpoint);
  } catch (...) {
    rename.undo();
    throw;
  }
  sync_directory(checkpoint.folder);
  delete_both(old);
}

void withdraw_checkpoint(const CheckpointPaths& checkpoint) {
  delete_both(checkpoint.with(".tmp"));
  std::error_code ignored;
  fs::remove(checkpoint.folder / ".latest.tmp", ignored);
}

void remove_checkpoint(const CheckpointPaths& checkpoint, const AfterRename& after) {
  const CheckpointPaths trash = checkpoint.with(".trash");
  delete_both(trash);
  Renames rename(after);
  try {
    rename(checkpoint.model(), trash.model());  // from now on it is none
    if (fs::exists(checkpoint.state())) rename(checkpoint.state(), trash.state());
  } catch (const Failure& error) {
    rename.undo();
    log_warning("the old checkpoint is not removed: {}", error.what());
    return;
  }
  delete_both(trash);
}

void remove_old_checkpoints(const CheckpointPaths& newest, std::int64_t keep) {
  if (keep <= 0) return;
  std::vector<CheckpointPaths> all = complete_checkpoints(newest.folder);
  std::erase_if(all, [&](const CheckpointPaths& one) { return one.name == newest.name; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= all.size(); ++i)
    remove_checkpoint(all[i]);
}

void clean_up_checkpoints(const fs::path& folder) {
  const std::vector<std::string> models = names_in(folder);
  for (const std::string& name : models)
    if (const std::string bare = name_without_suffix(name, ".old"); !bare.empty())
      if (!fs::exists(folder / bare)) put_back({folder, bare});
  // The state of a save or removal that was under way: its model still has the other name.
  for (const std::string& name : models)
    for (const char* suffix : {".tmp", ".trash"}) {
      const std::string bare = name_without_suffix(name, suffix);
      if (bare.empty() || fs::exists(folder / bare)) continue;
      delete_directory(CheckpointPaths{folder, bare}.state());
    }
  std::set<std::string> leftovers;
  for (const fs::path& where : {folder, folder / "state"})
    for (const std::string& name : names_in(where))
      if (name.starts_with(".step-")) leftovers.insert(name);
  for (const std::string& name : leftovers) delete_both({folder, name});
  std::error_code ignored;
  fs::remove(folder / ".latest.tmp", ignored);
}

std::optional<fs::path> find_latest_checkpoint(const fs::path& folder) {
  const fs::path latest = folder / "latest";
  std::error_code error;
  if (fs::exists(latest / "checksums.json", error)) return fs::canonical(latest);
  const std::vector<CheckpointPaths> all = complete_checkpoints(folder);
  if (all.empty()) return std::nullopt;
  return all.back().model();
}

}  // namespace kintsugi
