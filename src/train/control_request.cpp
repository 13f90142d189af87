#include "train/control_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/json_members.h"
#include "core/units.h"
#include "train/step_profile.h"

namespace kintsugi {
namespace {

using ControlJson = nlohmann::ordered_json;

constexpr std::int64_t kMostControlSteps = std::int64_t{1} << 40;
constexpr std::size_t kMostSettings = 20;

double rate_of(const std::string& value) {
  const double rate = parse_real(value);
  if (!(rate >= 0 && std::isfinite(rate))) user_error("'{}' is no learning rate", value);
  return rate;
}

std::int64_t steps_of(const std::string& value, std::int64_t least) {
  const std::int64_t steps = parse_count(value);
  if (steps < least || steps > kMostControlSteps)
    user_error("'{}' is no number of steps from {} on", value, least);
  return steps;
}

// A key of strings, of a line or a request.
std::string text_in(const ControlJson& json, const char* key, const std::string& source) {
  if (!json_at(json, key).is_string()) user_error("{}: {} is no text", source, key);
  return json_at(json, key).get<std::string>();
}

ControlJson object_of(const std::string& text, const std::string& source) {
  auto json = parse_untrusted_json(text);
  if (!json || !json->is_object()) user_error("{} is no JSON object", source);
  return std::move(*json);
}

bool flag_in(const ControlJson& json, const char* key, const std::string& source) {
  const ControlJson& value = json_at(json, key);
  if (!value.is_null() && !value.is_boolean()) user_error("{}: {} is no truth value", source, key);
  return value.is_boolean() && value.get<bool>();
}

std::int64_t profiled_steps_in(const ControlJson& json, const std::string& source) {
  const ControlJson& value = json_at(json, "profile");
  if (value.is_null()) return 0;
  const std::int64_t steps = value.is_number_integer() ? count_at(json, "profile") : -1;
  if (steps < 0 || steps > kMostProfiledSteps)
    user_error("{}: profile is no number of steps up to {}", source, kMostProfiledSteps);
  return steps;
}

}  // namespace

std::string ControlRequest::text() const {
  std::vector<std::string> parts;
  for (const auto& [key, value] : set) parts.push_back(fmt::format("{}={}", key, value));
  if (checkpoint) parts.emplace_back("checkpoint");
  if (evaluate) parts.emplace_back("evaluate");
  if (profile_steps > 0) parts.push_back("profile of " + format_number(profile_steps, "step"));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::filesystem::path control_file(const std::filesystem::path& run_dir) {
  return run_dir / "control.json";
}
std::filesystem::path control_history(const std::filesystem::path& run_dir) {
  return run_dir / "control.jsonl";
}

std::string to_json(const ControlRequest& request) {
  ControlJson set = ControlJson::object();
  for (const auto& [key, value] : request.set) set[key] = value;
  return compact_json({{"set", set},
                       {"checkpoint", request.checkpoint},
                       {"evaluate", request.evaluate},
                       {"profile", request.profile_steps}}) +
         "\n";
}

ControlRequest control_request_from_json(const std::string& text, const std::string& source) {
  const ControlJson json = object_of(text, source);
  ControlRequest request{.checkpoint = flag_in(json, "checkpoint", source),
                         .evaluate = flag_in(json, "evaluate", source),
                         .profile_steps = profiled_steps_in(json, source)};
  static const std::set<std::string> known = {"set", "checkpoint", "evaluate", "profile"};
  for (const auto& [name, value] : json.items())
    if (!known.contains(name)) user_error("{}: there is no request '{}'", source, name);
  const ControlJson& set = json_at(json, "set");
  if (!set.is_null() && (!set.is_object() || set.size() > kMostSettings))
    user_error("{}: set is no map of at most {} keys", source, kMostSettings);
  if (set.is_object())
    for (const auto& [key, value] : set.items()) {
      if (!value.is_string()) user_error("{}: set.{} is no text", source, key);
      request.set.emplace_back(key, value.get<std::string>());
    }
  if (request == ControlRequest{}) user_error("{} asks for nothing", source);
  return request;
}

const std::vector<std::string>& control_keys() {
  static const std::vector<std::string> keys = {"optimizer.lr", "optimizer.min_lr",
                                                "train.checkpoint_every", "train.eval_every",
                                                "train.log_every"};
  return keys;
}

void apply_control(StageConfig& config, const std::string& key, const std::string& value) {
  try {
    if (key == "optimizer.lr") {
      config.optimizer.lr = rate_of(value);
      if (config.optimizer.lr == 0) user_error("'{}' is no learning rate above 0", value);
    } else if (key == "optimizer.min_lr") {
      config.optimizer.min_lr = rate_of(value);
    } else if (key == "train.checkpoint_every") {
      config.train.checkpoint_every = steps_of(value, 0);
    } else if (key == "train.eval_every") {
      config.train.eval_every = steps_of(value, 0);
    } else if (key == "train.log_every") {
      config.train.log_every = steps_of(value, 1);
    } else {
      const std::string near = nearest_word(key, control_keys());
      user_error("it cannot be changed while the run trains{}: only {} can",
                 near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near),
                 fmt::join(control_keys(), ", "));
    }
  } catch (const UserError& error) {
    user_error("{}: {}", key, error.what());
  }
}

void check_control(const StageConfig& config, const ControlRequest& request) {
  StageConfig changed = config;
  for (const auto& [key, value] : request.set) {
    apply_control(changed, key, value);
    if (key == "train.checkpoint_every" && !config.train.checkpoint_every)
      user_error("train.checkpoint_every: it is auto in this run");
    if (key == "train.checkpoint_every" && !config.train.save)
      user_error("train.checkpoint_every: this run saves nothing (train.save: false)");
    if (key == "optimizer.lr" && config.optimizer.muon.lr > 0)
      user_error("optimizer.lr: it cannot be changed beside optimizer.muon.lr");
    if (key == "train.eval_every" && config.train.eval_every == 0)
      user_error("train.eval_every: this run has no validation data, because it is 0");
    if (changed.train.eval_every == 0 && config.train.eval_every > 0)
      user_error("train.eval_every: 0 could not be undone; give a large number");
  }
  if (changed.optimizer.min_lr > changed.optimizer.lr)
    user_error("optimizer.min_lr {:g} would be above optimizer.lr {:g}", changed.optimizer.min_lr,
               changed.optimizer.lr);
  if (request.checkpoint && !config.train.save)
    user_error("this run saves nothing (train.save: false)");
  if (request.evaluate && config.train.eval_every == 0 && config.train.eval_tasks.empty())
    user_error("this run has neither validation data (train.eval_every: 0) nor tasks");
}

std::string to_line(const ControlChange& change) {
  return compact_json({{"step", change.step},
                       {"stage", change.stage},
                       {"key", change.key},
                       {"value", change.value}}) +
         "\n";
}

std::vector<ControlChange> parse_control_history(const std::string& text,
                                                 const std::string& source) {
  std::vector<ControlChange> changes;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{} line {}", source, ++number);
    const ControlJson json = object_of(line, where);
    for (const char* key : {"step", "stage"})
      if (!json_at(json, key).is_number_integer() || count_at(json, key) < 0)
        user_error("{}: {} is no number", where, key);
    changes.push_back({count_at(json, "step"), count_at(json, "stage"), text_in(json, "key", where),
                       text_in(json, "value", where)});
    StageConfig any;
    try {
      apply_control(any, changes.back().key, changes.back().value);
    } catch (const UserError& error) {
      user_error("{}: {}", where, error.what());
    }
  }
  return changes;
}

StageConfig controlled(StageConfig config, const std::vector<ControlChange>& changes,
                       std::int64_t step) {
  for (const ControlChange& change : changes)
    if (change.stage == config.stage && change.step <= step)
      apply_control(config, change.key, change.value);
  return config;
}

}  // namespace kintsugi
