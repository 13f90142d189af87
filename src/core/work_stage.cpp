#include "core/work_stage.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {

using Json = nlohmann::ordered_json;

std::string to_json(const WorkPlan& plan) {
  Json stages = Json::array();
  for (const WorkStage& stage : plan.stages)
    stages.push_back({{"stage", stage.name},
                      {"units", stage.units ? Json(*stage.units) : Json()},
                      {"missing", stage.missing}});
  return Json{{"output", plan.output}, {"stages", stages}}.dump(-1, ' ', false,
                                                                Json::error_handler_t::replace) +
         "\n";
}

std::optional<WorkPlan> work_plan_of(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    WorkPlan plan{.output = json.at("output").get<std::string>()};
    for (const Json& one : json.at("stages")) {
      WorkStage& stage = plan.stages.emplace_back();
      stage.name = one.at("stage").get<std::string>();
      if (!one.at("units").is_null()) stage.units = one.at("units").get<std::size_t>();
      stage.missing = one.at("missing").get<std::vector<std::size_t>>();
    }
    return plan;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

ArrayTask parse_array_task(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) user_error("--job {}: expected NUMBER/JOBS, like 0/10", text);
  const auto number = [&](const std::string& part) {
    const std::int64_t value = parse_count(part);
    if (value < 0) user_error("--job {}: {} is negative", text, value);
    return static_cast<std::size_t>(value);
  };
  const ArrayTask task{number(text.substr(0, slash)), number(text.substr(slash + 1))};
  if (task.number >= task.tasks)
    user_error("--job {}: the jobs have the numbers 0 to {}", text,
               task.tasks == 0 ? 0 : task.tasks - 1);
  return task;
}

}  // namespace kintsugi
