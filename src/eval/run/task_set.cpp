#include "eval/run/task_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"
#include "core/yaml_document.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

bool is_task_file(const fs::path& path) {
  return path.extension() == ".yaml" || path.extension() == ".yml";
}

std::vector<fs::path> task_files_in(const fs::path& directory, bool subdirectories) {
  std::vector<fs::path> files;
  const auto add = [&](const fs::directory_entry& entry) {
    if (entry.is_regular_file() && is_task_file(entry.path())) files.push_back(entry.path());
  };
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  if (subdirectories)
    for (const auto& entry : fs::recursive_directory_iterator(directory, kOptions)) add(entry);
  else
    for (const auto& entry : fs::directory_iterator(directory, kOptions)) add(entry);
  std::sort(files.begin(), files.end());
  return files;
}

// Where names are defined. Files are only looked through here, because a directory may have tasks
// that this program does not support.
class TaskIndex {
 public:
  void add(const fs::path& directory, bool subdirectories) {
    for (const fs::path& file : task_files_in(directory, subdirectories)) add_file(file);
  }
  // The files that define the name, or have it as a tag. Empty: unknown.
  std::vector<fs::path> find(const std::string& name) const {
    if (const auto found = names_.find(name); found != names_.end()) {
      if (found->second.size() > 1)
        user_error("the task '{}' is in {} and {}: give the path of one of them", name,
                   found->second.begin()->string(), std::next(found->second.begin())->string());
      return {*found->second.begin()};
    }
    const auto tagged = tags_.find(name);
    if (tagged == tags_.end()) return {};
    return {tagged->second.begin(), tagged->second.end()};
  }
  [[noreturn]] void unknown(const std::string& name) const {
    std::vector<std::string> known;
    for (const auto& [one, files] : names_) known.push_back(one);
    for (const auto& [one, files] : tags_) known.push_back(one);
    const std::string near = nearest_word(name, known);
    user_error("there is no task, group, tag or file '{}'{}", name,
               !near.empty()   ? fmt::format(": did you mean '{}'?", near)
               : known.empty() ? ": give the directory of the task files with --include-path"
                               : fmt::format(": there are {}", fmt::join(known, ", ")));
  }

 private:
  void add_file(const fs::path& file) {
    YAML::Node node;
    try {
      node = load_yaml(read_text_file(file), file.string());
    } catch (const UserError&) {
      return;  // reported if the file itself is asked for
    }
    if (!node.IsMap()) return;
    const YAML::Node group = node["group"], task = node["task"], tag = node["tag"];
    const fs::path path = fs::weakly_canonical(file);
    if (group.IsDefined() && group.IsScalar())
      names_[group.Scalar()].insert(path);
    else if (task.IsDefined() && task.IsScalar())
      names_[task.Scalar()].insert(path);
    if (tag.IsDefined() && tag.IsScalar()) tags_[tag.Scalar()].insert(path);
    if (tag.IsDefined() && tag.IsSequence())
      for (const YAML::Node& one : tag)
        if (one.IsScalar()) tags_[one.Scalar()].insert(path);
  }

  std::map<std::string, std::set<fs::path>> names_, tags_;
};

class TaskFinder {
 public:
  TaskFinder(const std::vector<std::string>& wanted, const std::vector<fs::path>& include_paths) {
    for (const fs::path& path : include_paths) {
      if (!fs::is_directory(path)) user_error("{} is not a directory", path.string());
      index_.add(path, true);
    }
    for (const std::string& entry : wanted)
      if (fs::is_directory(entry))
        index_.add(entry, true);
      else if (is_file(entry))
        index_.add(fs::absolute(entry).parent_path(), false);
  }

  TaskSet find(const std::vector<std::string>& wanted) {
    for (const std::string& entry : wanted)
      if (fs::is_directory(entry)) {
        const std::vector<fs::path> files = task_files_in(entry, true);
        if (files.empty()) user_error("{} has no task files (*.yaml)", entry);
        for (const fs::path& file : files) add_file(file, 0);
      } else if (is_file(entry)) {
        add_file(entry, 0);
      } else {
        add_name(entry, 0);
      }
    for (const TaskSet::Group& group : set_.groups)
      for (TaskSet::Group& other : set_.groups)
        if (std::count(group.children.begin(), group.children.end(), other.group.name) > 0)
          other.nested = true;
    return std::move(set_);
  }

 private:
  struct Added {
    std::vector<std::string> names;
    std::vector<std::size_t> tasks;
  };
  static bool is_file(const std::string& entry) {
    const fs::path path(entry);
    return fs::is_regular_file(path) && (is_task_file(path) || entry.find('/') != entry.npos);
  }

  Added add_name(const std::string& name, int depth) {
    const std::vector<fs::path> files = index_.find(name);
    if (files.empty()) index_.unknown(name);
    Added added;
    for (const fs::path& file : files) {
      const Added one = add_file(file, depth);
      added.names.insert(added.names.end(), one.names.begin(), one.names.end());
      added.tasks.insert(added.tasks.end(), one.tasks.begin(), one.tasks.end());
    }
    return added;
  }

  Added add_file(const fs::path& file, int depth) {
    if (depth > 16) user_error("{}: groups contain each other", file.string());
    const std::string key = fs::weakly_canonical(file).string();
    if (const auto known = added_.find(key); known != added_.end()) return known->second;
    auto content = read_task_file(file);
    Added added;
    if (auto* task = std::get_if<EvalTask>(&content)) {
      check_name(task->name, file);
      added = {{task->name}, {set_.tasks.size()}};
      set_.tasks.push_back(std::move(*task));
    } else {
      added = add_group(std::get<EvalGroup>(std::move(content)), file, depth);
    }
    return added_[key] = added;
  }

  Added add_group(EvalGroup group, const fs::path& file, int depth) {
    TaskSet::Group entry;
    for (const std::string& name : group.tasks) {
      const Added added = add_name(name, depth + 1);
      entry.children.insert(entry.children.end(), added.names.begin(), added.names.end());
      for (const std::size_t task : added.tasks)
        if (std::count(entry.tasks.begin(), entry.tasks.end(), task) == 0)
          entry.tasks.push_back(task);
    }
    check_name(group.name, file);
    const Added result{{group.name}, entry.tasks};
    entry.group = std::move(group);
    set_.groups.push_back(std::move(entry));
    return result;
  }

  // Results are keyed by name.
  void check_name(const std::string& name, const fs::path& file) {
    const auto [at, is_new] = names_.emplace(name, file.string());
    if (!is_new)
      user_error("the task '{}' is in {} and {}: rename one of them", name, at->second,
                 file.string());
  }

  TaskIndex index_;
  TaskSet set_;
  std::map<std::string, Added> added_;  // by path
  std::map<std::string, std::string> names_;
};

}  // namespace

TaskSet find_tasks(const std::vector<std::string>& wanted,
                   const std::vector<fs::path>& include_paths) {
  if (wanted.empty()) user_error("give the tasks");
  return TaskFinder(wanted, include_paths).find(wanted);
}

}  // namespace kintsugi
