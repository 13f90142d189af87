#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "eval/task.h"

namespace kintsugi {

// The tasks of an evaluation, and the groups that they are averaged in.
struct TaskSet {
  struct Group {
    EvalGroup group;
    std::vector<std::string> children;  // names of tasks and groups
    std::vector<std::size_t> tasks;     // all below it
    bool nested = false;                // is in another group
  };
  std::vector<EvalTask> tasks;  // each once
  std::vector<Group> groups;    // a group follows the groups below it
};

// Finds tasks. Each entry of `wanted` is the path of a task or group file, a directory (all its
// *.yaml), or the name of a task, a group or a tag. Names are searched in the directories of the
// given files, and in given directories and `include_paths` with their subdirectories. UserError
// for an unknown name, one that several files have, or groups that contain each other.
TaskSet find_tasks(const std::vector<std::string>& wanted,
                   const std::vector<std::filesystem::path>& include_paths);

}  // namespace kintsugi
