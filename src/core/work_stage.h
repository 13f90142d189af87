#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kintsugi {

// A stage of a command whose units are independent: the tasks of a job array may do them.
struct WorkStage {
  std::string name = {};
  // Not set: unknown before there are inputs.
  std::optional<std::size_t> units = {};
  std::vector<std::size_t> missing = {};  // units, in order

  bool operator==(const WorkStage&) const = default;
};

// What a command says of its work before it begins (--units).
struct WorkPlan {
  std::string output = {};  // a directory
  std::vector<WorkStage> stages = {};
  bool operator==(const WorkPlan&) const = default;
};
std::string to_json(const WorkPlan& plan);
// Nothing if the text is none.
std::optional<WorkPlan> work_plan_of(std::string_view json);

// One of the tasks of a job array: it does the units number, number + tasks, number + 2 tasks, …
struct ArrayTask {
  std::size_t number = 0, tasks = 1;
};
// "3/10": the fourth of ten. UserError.
ArrayTask parse_array_task(const std::string& text);

}  // namespace kintsugi
