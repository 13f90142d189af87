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
    if (const auto old = then.find(key); old != then.end() && old->second != value)
      changes.push_back({key, old->second, value});
  return changes;
}

Schedule schedule_of(const RunConfig& config) {
  return {.kind = config.optimizer.schedule,
          .lr = config.optimizer.lr,
          .min_lr = config.optimizer.min_lr,
          .warmup_steps = config.optimizer.warmup_steps,
          .decay_steps = config.optimizer.decay_steps,
          .total_steps = config.total_steps()};
}

std::string schedule_jump(const Schedule& before, const Schedule& after, std::int64_t next_step) {
  const double then = before.learning_rate(next_step), now = after.learning_rate(next_step);
  if (std::abs(now - then) <= 0.1 * std::max(now, then)) return "";
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

}  // namespace kintsugi
