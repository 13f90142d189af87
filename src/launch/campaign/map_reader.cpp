#include "launch/campaign/map_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/units.h"
#include "core/yaml_document.h"
#include "launch/matrix.h"

namespace kintsugi {

MapReader::MapReader(YAML::Node map, std::string source, std::string path, int line)
    : map_(std::move(map)), source_(std::move(source)), path_(std::move(path)), line_(line) {
  if (!map_.IsMap()) complain("", fmt::format("a map is expected, found {}", in_words(map_)));
}

std::string MapReader::where(int line) const {
  return line < 0 ? source_ : fmt::format("{} line {}", source_, line + 1);
}

bool MapReader::has(const std::string& key) const { return line_of_key(map_, key) >= 0; }

std::optional<YAML::Node> MapReader::any(const char* key) {
  known_.emplace_back(key);
  for (const auto& item : map_)
    if (item.first.Scalar() == key) return item.second;
  return {};
}

std::string MapReader::scalar(const char* key, const YAML::Node& value,
                              const char* expected) const {
  if (!value.IsScalar() || value.Scalar().empty())
    complain(key, fmt::format("{} is expected, found {}", expected, in_words(value)));
  return value.Scalar();
}

void MapReader::check(const char* key, double value, Range range) const {
  if (!range.holds(value)) complain(key, fmt::format("it must be {}", range.text()));
}

void MapReader::text(const char* key, std::string& value) {
  if (const auto found = any(key)) value = scalar(key, *found, "a text");
}

void MapReader::count(const char* key, std::int64_t& value, Range range) {
  const auto found = any(key);
  if (!found) return;
  value = parse(key, [&] { return parse_count(scalar(key, *found, "a number")); });
  check(key, static_cast<double>(value), range);
}

void MapReader::number(const char* key, double& value, Range range) {
  const auto found = any(key);
  if (!found) return;
  value = parse(key, [&] { return parse_real(scalar(key, *found, "a number")); });
  check(key, value, range);
}

void MapReader::duration(const char* key, double& value_s, Range range) {
  const auto found = any(key);
  if (!found) return;
  value_s = parse(key, [&] { return parse_duration_s(scalar(key, *found, "a duration")); });
  check(key, value_s, range);
}

void MapReader::flag(const char* key, bool& value) {
  if (const auto found = any(key))
    value = parse(key, [&] { return parse_bool(scalar(key, *found, "true or false")); });
}

std::optional<std::vector<std::string>> MapReader::list(const char* key) {
  const auto found = any(key);
  if (!found) return {};
  if (found->IsScalar()) return std::vector{scalar(key, *found, "a list")};
  if (!found->IsSequence() || found->size() == 0)
    complain(key, fmt::format("a list is expected, found {}",
                              found->IsSequence() ? "an empty one" : in_words(*found)));
  std::vector<std::string> items;
  for (const auto& item : *found) items.push_back(scalar(key, item, "a list of words"));
  return items;
}

MapReader MapReader::inner(const std::string& key, const YAML::Node& map, int line) const {
  return {map, source_, path_.empty() ? key : path_ + "." + key, line};
}

std::optional<MapReader> MapReader::map(const char* key) {
  const auto found = any(key);
  if (!found) return {};
  return inner(key, *found, line_of_key(map_, key));
}

void MapReader::check_key(const std::string& key, int line) const {
  for (const char* own : {"run.dir", "run.from"})
    if (keys_overlap(key, own))
      user_error("{}: {}: {} is set by the campaign: remove {}", where(line), path_, own, key);
}

void MapReader::complain(const std::string& key, const std::string& problem) const {
  const int line = key.empty() ? -1 : line_of_key(map_, key);
  const std::string name = key.empty()     ? path_
                           : path_.empty() ? key
                                           : fmt::format("{}.{}", path_, key);
  user_error("{}{}{}: {}", where(line >= 0 ? line : line_), name.empty() ? "" : ": ", name,
             problem);
}

void MapReader::refuse_others() const {
  for (const auto& item : map_) {
    const std::string key = item.first.Scalar();
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string near = nearest_word(key, known_);
    complain(key, near.empty() ? "there is no such key here"
                               : fmt::format("there is no such key: did you mean '{}'?", near));
  }
}

}  // namespace kintsugi
