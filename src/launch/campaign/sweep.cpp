#include "launch/campaign/sweep.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "core/error.h"
#include "core/yaml_document.h"
#include "launch/campaign/filter.h"
#include "launch/matrix.h"

namespace kintsugi {
namespace {

// Values that are set together.
struct SetValues {
  std::vector<std::string> labels = {}, overrides = {};
  std::map<std::string, std::string> texts = {};  // by key, for the filter
};
using SetChoices = std::vector<SetValues>;

void add_value(SetValues& values, const std::string& key, const YAML::Node& value,
               std::size_t index) {
  values.labels.push_back(label_for(key, value, index));
  values.overrides.push_back(override_of(key, value));
  if (value.IsScalar()) values.texts[key] = value.Scalar();
}

const YAML::Node& list_of_values(const MapReader& reader, const std::string& key,
                                 const YAML::Node& values) {
  if (!values.IsSequence() || values.size() == 0)
    reader.complain(key, fmt::format("a list of values is expected, found {}",
                                     values.IsSequence() ? "an empty one" : in_words(values)));
  return values;
}

void check_sweep_key(const MapReader& reader, const std::string& key, int line,
                     std::vector<std::string>& keys) {
  reader.check_key(key, line);
  for (const std::string& other : keys)
    if (keys_overlap(other, key))
      reader.complain(key, fmt::format("{} sets the same values", other));
  keys.push_back(key);
}

// One list of choices for each key.
std::vector<SetChoices> read_grid(const MapReader& reader, std::vector<std::string>& keys) {
  std::vector<SetChoices> axes;
  for (const auto& item : reader.node()) {
    const std::string key = item.first.Scalar();
    check_sweep_key(reader, key, item.first.Mark().line, keys);
    SetChoices& axis = axes.emplace_back();
    std::size_t index = 0;
    for (const auto& value : list_of_values(reader, key, item.second))
      add_value(axis.emplace_back(), key, value, index++);
  }
  return axes;
}

SetChoices read_zip(const MapReader& reader, std::vector<std::string>& keys) {
  SetChoices choices;
  if (reader.node().size() == 0) reader.complain("", "it has no keys");
  for (const auto& item : reader.node()) {
    const std::string key = item.first.Scalar();
    check_sweep_key(reader, key, item.first.Mark().line, keys);
    const YAML::Node& values = list_of_values(reader, key, item.second);
    if (choices.empty()) choices.resize(values.size());
    if (choices.size() != values.size())
      reader.complain(key, fmt::format("it has {} values, those before have {}", values.size(),
                                       choices.size()));
    std::size_t index = 0;
    for (const auto& value : values) {
      add_value(choices[index], key, value, index);
      ++index;
    }
  }
  return choices;
}

SetChoices read_list(MapReader& reader, const YAML::Node& list, std::vector<std::string>& keys) {
  SetChoices choices;
  const std::vector<std::string> before = keys;
  std::size_t index = 0;
  for (const auto& item : list_of_values(reader, "list", list)) {
    if (!item.IsMap() || item.size() == 0)
      reader.complain("list", fmt::format("item {}: a map of values is expected", index + 1));
    const MapReader point = reader.inner(fmt::format("list[{}]", index), item, item.Mark().line);
    std::vector<std::string> own = before;
    SetValues& values = choices.emplace_back();
    for (const auto& value : item) {
      const std::string key = value.first.Scalar();
      check_sweep_key(point, key, value.first.Mark().line, own);
      add_value(values, key, value.second, index);
    }
    ++index;
  }
  return choices;
}

SetChoices combined(const std::vector<SetChoices>& axes, const MapReader& reader) {
  std::size_t count = 1;
  for (const SetChoices& axis : axes) {  // before they need memory
    count *= axis.size();
    if (count > kMostSweepPoints)
      reader.complain("", fmt::format("the sweep has more than {} runs", kMostSweepPoints));
  }
  SetChoices all(1);
  for (const SetChoices& axis : axes) {
    SetChoices more;
    for (const SetValues& one : all)
      for (const SetValues& other : axis) {
        SetValues both = one;
        both.labels.insert(both.labels.end(), other.labels.begin(), other.labels.end());
        both.overrides.insert(both.overrides.end(), other.overrides.begin(), other.overrides.end());
        both.texts.insert(other.texts.begin(), other.texts.end());
        more.push_back(std::move(both));
      }
    all = std::move(more);
  }
  return all;
}

bool passes(const std::string& filter, const SetValues& values) {
  return filter_holds(filter, [&](const std::string& key) -> std::optional<std::string> {
    const auto found = values.texts.find(key);
    return found == values.texts.end() ? std::nullopt : std::optional(found->second);
  });
}

}  // namespace

std::vector<CampaignPoint> read_sweep(MapReader& reader) {
  std::vector<std::string> keys;
  std::vector<SetChoices> axes;
  if (const auto grid = reader.map("grid")) axes = read_grid(*grid, keys);
  if (const auto zip = reader.map("zip")) axes.push_back(read_zip(*zip, keys));
  if (const auto list = reader.any("list")) axes.push_back(read_list(reader, *list, keys));
  std::string filter;
  reader.text("filter", filter);
  if (axes.empty()) {
    if (!filter.empty()) reader.complain("filter", "there is no grid, zip or list to filter");
    return {};
  }
  std::vector<CampaignPoint> points;
  std::set<std::string> names;
  std::set<std::vector<std::string>> seen;
  for (SetValues& values : combined(axes, reader)) {
    if (!filter.empty() && !reader.parse("filter", [&] { return passes(filter, values); }))
      continue;
    if (!seen.insert(values.overrides).second)
      reader.complain("", "two runs of the sweep have the same values: remove one");
    points.push_back({cell_name(values.labels, names), std::move(values.overrides)});
  }
  if (points.empty()) reader.complain("filter", "no run of the sweep passes it");
  return points;
}

}  // namespace kintsugi
