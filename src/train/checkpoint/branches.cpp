#include "train/checkpoint/branches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"

namespace kintsugi {

using Json = nlohmann::ordered_json;

bool Lineage::descends_from(const Ancestor& other) const {
  return std::ranges::find(ancestors, other) != ancestors.end();
}

Lineage child_lineage(const std::vector<Ancestor>& ancestors, std::int64_t sequence,
                      const std::string& content) {
  const std::size_t skipped =
      ancestors.size() > kMostAncestors ? ancestors.size() - kMostAncestors : 0;
  const std::string parent = ancestors.empty() ? "" : ancestors.back().id;
  return {.sequence = sequence,
          .id = hex64(hash64(parent + "\n" + content)),
          .ancestors = {ancestors.begin() + static_cast<std::ptrdiff_t>(skipped), ancestors.end()}};
}

std::string to_json(const Lineage& lineage) {
  Json ancestors = Json::array();
  for (const Ancestor& one : lineage.ancestors) ancestors.push_back({one.name, one.id});
  return Json{{"sequence", lineage.sequence}, {"id", lineage.id}, {"ancestors", ancestors}}.dump() +
         "\n";
}

Lineage read_lineage(const std::filesystem::path& state) {
  const std::filesystem::path path = state / "lineage.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  try {
    const Json json = Json::parse(read_text_file(path));
    Lineage lineage;
    lineage.sequence = json.at("sequence").get<std::int64_t>();
    lineage.id = json.at("id").get<std::string>();
    for (const Json& one : json.at("ancestors"))
      lineage.ancestors.push_back({one.at(0).get<std::string>(), one.at(1).get<std::string>()});
    return lineage;
  } catch (const nlohmann::json::exception&) {
    return {};  // load_checkpoint() reports the damage; until then it counts as having no lineage
  }
}

namespace fs = std::filesystem;
namespace {

Lineage lineage_of(const CheckpointPaths& checkpoint) {
  return read_lineage(state_directory(checkpoint.model()));
}

fs::path abandoned_mark(const CheckpointPaths& checkpoint) {
  return state_directory(checkpoint.model()) / "abandoned";
}

bool is_abandoned(const CheckpointPaths& checkpoint) {
  return fs::exists(abandoned_mark(checkpoint));
}

// Checkpoints without a lineage were saved before all others, in the order of their names.
std::vector<CheckpointPaths> in_order_of_saving(std::vector<CheckpointPaths> checkpoints) {
  std::vector<std::pair<std::int64_t, CheckpointPaths>> numbered;
  for (CheckpointPaths& one : checkpoints)
    numbered.emplace_back(lineage_of(one).sequence, std::move(one));
  std::ranges::stable_sort(numbered,
                           [](const auto& a, const auto& b) { return a.first < b.first; });
  checkpoints.clear();
  for (auto& [sequence, one] : numbered) checkpoints.push_back(std::move(one));
  return checkpoints;
}

// Replaces `latest` by a link if copying made it a directory (`cp -rL`, an object store).
void make_link_of_directory(const fs::path& folder) {
  const fs::path latest = folder / "latest";
  if (fs::is_symlink(latest) || !fs::is_directory(latest)) return;
  std::int64_t step = 0;
  try {
    step = nlohmann::json::parse(read_text_file(latest / "trainer.json")).at("step");
  } catch (const std::exception&) {
    user_error("{} must be a link, but is a directory without a checkpoint: move it elsewhere",
               latest.string());
  }
  const CheckpointPaths target{folder, checkpoint_name(step)};
  const auto list = [](const fs::path& model) { return read_text_file(model / "checksums.json"); };
  if (!fs::exists(target.model())) {
    fs::rename(latest, target.model());
    log_info("{} was a directory, not a link: it is now {}", latest.string(), target.name);
  } else if (list(latest) == list(target.model())) {
    fs::path copy = folder / "latest-copy";
    for (int i = 2; fs::exists(copy); ++i) copy = folder / fmt::format("latest-copy-{}", i);
    fs::rename(latest, copy);
    log_warning("{} was a copy of {}, not a link: it was moved to {}, which may be deleted",
                latest.string(), target.name, copy.string());
  } else {
    user_error(
        "{} is a directory, not a link, and differs from {} next to it: move the one that the run "
        "should not continue from elsewhere",
        latest.string(), target.name);
  }
  point_latest_to(target);
}

// Returns the name that `latest` points to, even if it does not exist; empty without `latest`.
std::string named_by_latest(const fs::path& folder) {
  const fs::path latest = folder / "latest";
  if (fs::is_symlink(latest)) return fs::read_symlink(latest).filename().string();
  if (!fs::is_regular_file(latest)) return "";
  std::string name = read_text_file(latest);
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back())) != 0)
    name.pop_back();
  return name;
}

// Returns whether the checkpoint descends from one of this name, so is on an abandoned branch.
bool comes_after(const CheckpointPaths& checkpoint, const std::string& name) {
  const Lineage lineage = lineage_of(checkpoint);
  return std::ranges::any_of(lineage.ancestors,
                             [&](const Ancestor& one) { return one.name == name; });
}

[[noreturn]] void refuse(const fs::path& folder, const std::vector<CheckpointPaths>& checkpoints) {
  const CheckpointPaths& one = checkpoints.back();
  const std::string missing = what_is_missing(one);
  user_error(
      "{} holds {} checkpoint{} and none to continue from ({}: {}): point {} to one of them, or "
      "choose another run.dir",
      folder.string(), checkpoints.size(), checkpoints.size() == 1 ? "" : "s", one.name,
      missing.empty() ? "it is on a branch abandoned by a rollback" : missing,
      (folder / "latest").string());
}

// A run whose checkpoints are all damaged does not start again from the beginning by itself.
void refuse_damaged(const fs::path& folder) {
  const std::vector<std::string> damaged = list_damaged(folder);
  if (!damaged.empty())
    user_error(
        "{} holds only damaged checkpoints ({}): copy one again from a backup, or choose another "
        "run.dir",
        folder.string(), damaged.back());
}

// Removes the checkpoints from which the run does not continue by itself. `named` is that of
// `latest`.
void remove_abandoned(std::vector<CheckpointPaths>& checkpoints, const std::string& named) {
  std::erase_if(checkpoints, [&](const CheckpointPaths& one) {
    return is_abandoned(one) || (!named.empty() && comes_after(one, named));
  });
}

}  // namespace

std::vector<fs::path> peek_checkpoints(const fs::path& folder) {
  const std::string named = named_by_latest(folder);
  const fs::path latest = named.empty() ? folder / "latest" : folder / named;
  std::vector<fs::path> found;
  if (fs::exists(latest / "checksums.json")) found.push_back(fs::canonical(latest));
  std::vector<CheckpointPaths> whole = list_checkpoints(folder);
  std::erase_if(whole, [&](const CheckpointPaths& one) {
    return one.name == named || !what_is_missing(one).empty();
  });
  remove_abandoned(whole, named);
  whole = in_order_of_saving(std::move(whole));
  for (auto one = whole.rbegin(); one != whole.rend(); ++one) found.push_back(one->model());
  return found;
}

std::optional<fs::path> peek_latest_checkpoint(const fs::path& folder) {
  const std::vector<fs::path> found = peek_checkpoints(folder);
  if (found.empty()) return std::nullopt;
  return found.front();
}

std::string fall_back(const CheckpointPaths& damaged, const std::string& damage) {
  const std::string aside = set_aside(damaged);
  const std::optional<fs::path> next = peek_latest_checkpoint(damaged.folder);
  if (!next) {
    take_back(damaged, aside);
    return "";
  }
  const CheckpointPaths found{damaged.folder, next->filename().string()};
  point_latest_to(found);
  log_warning("{}: {} was renamed to {}, and the run continues from {}", damage, damaged.name,
              aside, found.name);
  return found.name;
}

fs::path named_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    user_error("there is no {}: give a run directory or one of its checkpoints", path.string());
  fs::path found;
  if (fs::exists(path / "trainer.json", ignored))
    found = fs::canonical(path);
  else if (const auto latest = peek_latest_checkpoint(path / "checkpoints"))
    found = *latest;
  else
    user_error("{} holds no checkpoint: give a run directory that has one, or a checkpoint",
               path.string());
  const std::string missing = what_is_missing({found.parent_path(), found.filename().string()});
  if (!missing.empty()) user_error("{} cannot be continued: {}", found.string(), missing);
  return found;
}

std::optional<fs::path> find_latest_checkpoint(const fs::path& folder) {
  make_link_of_directory(folder);
  return look_for_latest_checkpoint(folder);
}

std::optional<fs::path> look_for_latest_checkpoint(const fs::path& folder) {
  const std::string named = named_by_latest(folder);
  const bool is_file = fs::is_regular_file(fs::symlink_status(folder / "latest"));
  const fs::path latest = is_file ? folder / named / "." : folder / "latest";
  const bool is_there =
      (!named.empty() || fs::is_directory(latest)) && fs::exists(latest / "checksums.json");
  const std::vector<CheckpointPaths> all = list_checkpoints(folder);
  std::vector<CheckpointPaths> whole;
  for (const CheckpointPaths& one : all) {
    const std::string missing = what_is_missing(one);
    if (missing.empty())
      whole.push_back(one);
    else if (!is_there || one.name != named)  // load_checkpoint() reports that one
      log_warning("the checkpoint {} is skipped: {}", one.model().string(), missing);
  }
  if (is_there) return fs::canonical(latest);
  remove_abandoned(whole, named);
  if (whole.empty() && all.empty()) {
    refuse_damaged(folder);
    return std::nullopt;
  }
  if (whole.empty()) refuse(folder, all);
  const CheckpointPaths found = in_order_of_saving(std::move(whole)).back();
  log_warning(
      "{} {}: the run continues from {}, the newest checkpoint of its branch",
      (folder / "latest").string(),
      named.empty() ? "is missing" : fmt::format("points to {}, which cannot be loaded", named),
      found.name);
  return found.model();
}

void mark_branches(const CheckpointPaths& head) {
  const Lineage lineage = lineage_of(head);
  bool before_head = true;
  for (const CheckpointPaths& one : list_checkpoints(head.folder)) {
    if (!fs::exists(state_directory(one.model()))) continue;
    const bool is_head = one.name == head.name;
    if (is_head) before_head = false;
    const std::string id = lineage_of(one).id;
    const bool ancestor = id.empty() ? before_head : lineage.descends_from({one.name, id});
    const fs::path mark = abandoned_mark(one);
    std::error_code error;
    if (is_head || ancestor) {
      fs::remove(mark, error);
    } else if (!fs::exists(mark)) {
      write_file_atomically(mark, fmt::format("The run continued from {}.\n", head.name));
      log_info("{} is on an abandoned branch: the run continues from {}", one.name, head.name);
    }
  }
}

std::vector<Ancestor> ancestors_after(const fs::path& model) {
  Lineage lineage = read_lineage(state_directory(model));
  lineage.ancestors.push_back({model.filename().string(), lineage.id});
  return lineage.ancestors;
}

std::int64_t next_sequence(const fs::path& folder) {
  std::int64_t last = 0;
  for (const CheckpointPaths& one : list_checkpoints(folder))
    last = std::max(last, lineage_of(one).sequence);
  return last + 1;
}

bool is_last_saved(const CheckpointPaths& checkpoint) {
  return lineage_of(checkpoint).sequence + 1 == next_sequence(checkpoint.folder);
}

void remove_old_checkpoints(const CheckpointPaths& newest, std::int64_t keep) {
  if (keep <= 0) return;
  std::vector<CheckpointPaths> all = list_checkpoints(newest.folder);
  std::erase_if(all, [&](const CheckpointPaths& one) {
    const bool kept = !is_abandoned(one) && fs::exists(state_directory(one.model()) / kKeepMark);
    return one.name == newest.name || kept || !what_is_missing(one).empty();
  });
  all = in_order_of_saving(std::move(all));
  std::ranges::stable_partition(all, is_abandoned);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= all.size(); ++i)
    remove_checkpoint(all[i]);
}

void keep_always(const std::filesystem::path& model) {
  const std::filesystem::path mark = state_directory(model) / kKeepMark;
  if (!std::filesystem::exists(mark)) write_file_atomically(mark, std::string(kEndOfStage) + "\n");
}

}  // namespace kintsugi
