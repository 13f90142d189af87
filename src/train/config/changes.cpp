#include "train/config/changes.h"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace kintsugi {
namespace {

using Values = std::map<std::string, std::string>;

std::string on_one_line(const YAML::Node& node) {
  std::vector<std::string> parts;
  if (node.IsMap()) {
    for (const auto& entry : node)
      parts.push_back(entry.first.Scalar() + ": " + on_one_line(entry.second));
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  if (node.IsSequence()) {
    for (const auto& item : node) parts.push_back(on_one_line(item));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  return node.IsScalar() ? node.Scalar() : "null";
}

void flatten(const YAML::Node& node, const std::string& prefix, Values& values) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const std::string key = entry.first.Scalar();
      flatten(entry.second, prefix.empty() ? key : prefix + "." + key, values);
    }
    return;
  }
  if (node.IsSequence() && prefix == "stages") {
    for (std::size_t i = 0; i < node.size(); ++i)
      flatten(node[i], fmt::format("stages[{}]", i), values);
    return;
  }
  values[prefix] = on_one_line(node);
}

Values values_of(const std::string& yaml) {
  Values values;
  flatten(YAML::Load(yaml), "", values);
  return values;
}

bool is_jump(double before, double after) {
  return std::abs(after - before) > 0.1 * std::max(after, before);
}

// Checkpoints do not contain it (to_public_yaml), and the log must not.
bool is_private(const std::string& key) { return key.starts_with("run.notify."); }

}  // namespace

std::vector<ConfigChange> config_changes(const std::string& before, const RunConfig& after) {
  const Values now = values_of(to_yaml(after));
  Values then;
  try {
    then = values_of(before);
  } catch (const YAML::Exception&) {
    return {};  // edited by hand
  }
  std::vector<ConfigChange> changes;
  for (const auto& [key, value] : now)
    if (const auto old = then.find(key);
        old != then.end() && old->second != value && !is_private(key))
      changes.push_back({key, old->second, value});
  return changes;
}

Schedule schedule_of(const StageConfig& config) {
  return {.kind = config.optimizer.schedule,
          .lr = config.optimizer.lr,
          .min_lr = config.optimizer.min_lr,
          .warmup_steps = config.optimizer.warmup_steps,
          .decay_steps = config.optimizer.decay_steps,
          .total_steps = config.total_steps()};
}

std::string schedule_jump(const Schedule& before, const Schedule& after, std::int64_t next_step) {
  const double then = before.learning_rate(next_step), now = after.learning_rate(next_step);
  if (!is_jump(then, now)) return "";
  const std::string previous =
      before.last_step() < next_step
          ? fmt::format("the previous schedule, which ended at step {}, has", before.last_step())
          : "the previous schedule has";
  return fmt::format(
      "the learning rate jumps at step {}: {} {:.3g}, the new one has {:.3g}; to avoid the jump, "
      "resume from a checkpoint before the decay or choose optimizer.lr, min_lr and schedule to "
      "match",
      next_step, previous, then, now);
}

std::vector<std::string> planned_jumps(const RunConfig& run, std::int64_t first) {
  std::vector<std::string> jumps;
  for (std::int64_t i = first + 1; i < run.stage_count(); ++i) {
    const RunConfig stage = run.at_stage(i);
    const Schedule previous = schedule_of(run.at_stage(i - 1));
    // Both schedules at the first step of the stage.
    const double before = previous.learning_rate(previous.total_steps + 1),
                 after = schedule_of(stage).learning_rate(1);
    if (is_jump(before, after))
      jumps.push_back(
          fmt::format("{}: the learning rate jumps from {:.3g} to {:.3g} at its start; to avoid "
                      "the jump, choose optimizer.schedule, lr and min_lr of the stages to match",
                      stage.stage_title(), before, after));
  }
  return jumps;
}

}  // namespace kintsugi
