#include "train/checkpoint/folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

const char* const kDamaged = ".damaged";

// A sequence of renames that can be undone in reverse order if a later one fails.
class Renames {
 public:
  explicit Renames(AfterRename after = {}) : after_(std::move(after)) {}

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
  AfterRename after_;
  std::vector<std::pair<fs::path, fs::path>> done_;
};

void delete_directory(const fs::path& directory) {
  std::error_code error;
  fs::remove_all(directory, error);
  if (error) log_warning("cannot remove {}: {}", directory.string(), error.message());
}

// Deletes the state first: a model without its state is recognized as incomplete.
void delete_both(const CheckpointPaths& checkpoint) {
  delete_directory(checkpoint.state());
  delete_directory(checkpoint.model());
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
  std::ranges::sort(names);
  return names;
}

// Returns "step-00000100" for ".step-00000100.old", and "" for other names.
std::string name_without_suffix(const std::string& name, const std::string& suffix) {
  if (!name.starts_with(".") || !name.ends_with(suffix) || name.size() < suffix.size() + 1)
    return "";
  const std::string bare = name.substr(1, name.size() - 1 - suffix.size());
  return is_checkpoint_name(bare) ? bare : "";
}

// Restores a checkpoint after a save was killed between moving it away and publishing the new one.
// The model is renamed last, so a kill in here only means that this is repeated.
void put_back(const CheckpointPaths& checkpoint) {
  const CheckpointPaths old = checkpoint.with(".old"), trash = checkpoint.with(".trash");
  Renames rename;
  if (fs::exists(old.state())) {
    delete_directory(trash.state());
    if (fs::exists(checkpoint.state())) rename(checkpoint.state(), trash.state());
    rename(old.state(), checkpoint.state());
  } else if (fs::exists(old.model() / "optimizer")) {
    delete_directory(checkpoint.state());  // of the new checkpoint; the old one has its own inside
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
    // The same step may have been saved before.
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
    rename(checkpoint.model(), trash.model());  // from now on it is not listed
    if (fs::exists(checkpoint.state())) rename(checkpoint.state(), trash.state());
  } catch (const Failure& error) {
    rename.undo();
    log_warning("cannot remove an old checkpoint: {}", error.what());
    return;
  }
  delete_both(trash);
}

// The state first: a kill in between leaves a model without its state, which is damaged again.
std::string set_aside(const CheckpointPaths& checkpoint) {
  CheckpointPaths aside{checkpoint.folder, checkpoint.name + kDamaged};
  for (int i = 2; fs::exists(aside.model()) || fs::exists(aside.state()); ++i)
    aside.name = fmt::format("{}{}-{}", checkpoint.name, kDamaged, i);
  Renames rename;
  try {
    if (fs::exists(checkpoint.state())) rename(checkpoint.state(), aside.state());
    rename(checkpoint.model(), aside.model());
  } catch (...) {
    rename.undo();
    throw;
  }
  return aside.name;
}

void take_back(const CheckpointPaths& checkpoint, const std::string& aside) {
  const CheckpointPaths from{checkpoint.folder, aside};
  Renames rename;
  rename(from.model(), checkpoint.model());
  if (fs::exists(from.state())) rename(from.state(), checkpoint.state());
}

std::vector<std::string> list_damaged(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder);
  std::erase_if(names, [](const std::string& name) {
    const std::size_t end = name.find(kDamaged);
    return end == std::string::npos || !is_checkpoint_name(name.substr(0, end));
  });
  return names;
}

void clean_up_checkpoints(const fs::path& folder) {
  const std::vector<std::string> models = names_in(folder);
  for (const std::string& name : models)
    if (const std::string bare = name_without_suffix(name, ".old"); !bare.empty())
      if (!fs::exists(folder / bare)) put_back({folder, bare});
  // The state of an unfinished save or removal: its model still has the temporary name.
  for (const std::string& name : models)
    for (const char* suffix : {".tmp", ".trash"}) {
      const std::string bare = name_without_suffix(name, suffix);
      if (bare.empty() || fs::exists(folder / bare)) continue;
      delete_directory(CheckpointPaths{folder, bare}.state());
    }
  std::set<std::string> leftovers;
  for (const fs::path& directory : {folder, folder / "state"})
    for (const std::string& name : names_in(directory))
      if (name.starts_with(".step-")) leftovers.insert(name);
  for (const std::string& name : leftovers) delete_both({folder, name});
  // The user moved or deleted the model: its state must not be deleted.
  for (const std::string& name : names_in(folder / "state"))
    if (is_checkpoint_name(name) && !fs::exists(folder / name))
      log_warning(
          "{} is the state of a checkpoint that does not exist: delete it unless you need it",
          (folder / "state" / name).string());
  std::error_code ignored;
  fs::remove(folder / ".latest.tmp", ignored);
}

std::vector<CheckpointPaths> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointPaths> found;
  for (const std::string& name : names_in(folder))
    if (is_checkpoint_name(name) && fs::is_directory(folder / name))
      found.push_back({folder, name});
  const auto by_step = [](const CheckpointPaths& a, const CheckpointPaths& b) {
    return std::pair(a.name.size(), a.name) < std::pair(b.name.size(), b.name);
  };
  std::ranges::sort(found, by_step);  // names have eight digits or more
  return found;
}

std::string what_is_missing(const CheckpointPaths& checkpoint) {
  const fs::path state = state_directory(checkpoint.model());
  if (!fs::exists(checkpoint.model() / "checksums.json"))
    return "it has no checksums.json, so it was not copied in full";
  if (!fs::exists(state)) return fmt::format("the optimizer's state is not in {}", state.string());
  return "";
}

void point_latest_to(const CheckpointPaths& checkpoint, const MakeLink& make_link) {
  const fs::path link = checkpoint.folder / ".latest.tmp", latest = checkpoint.folder / "latest";
  std::error_code error;
  fs::remove(link, error);
  if (make_link)
    make_link(checkpoint.name, link, error);
  else
    fs::create_directory_symlink(checkpoint.name, link, error);
  if (error) {  // a file system without links
    FileWriter file(link);
    file.write(checkpoint.name.data(), checkpoint.name.size());
    file.close();
  }
  if (::rename(link.c_str(), latest.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    fs::remove(link, error);
    failure("cannot point {} to {}: {}", latest.string(), checkpoint.name, reason);
  }
}

}  // namespace kintsugi
