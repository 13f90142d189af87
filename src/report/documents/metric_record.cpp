#include "report/documents/metric_record.h"

#include <fmt/format.h>

namespace kintsugi {
namespace {

using RecordJson = nlohmann::ordered_json;
using Kind = JsonMember::Kind;

// A JSON string between its quotes.
std::string decoded(std::string_view text) {
  if (text.find('\\') == std::string_view::npos) return std::string(text);
  const RecordJson json = RecordJson::parse(fmt::format("\"{}\"", text), nullptr, false);
  return json.is_string() ? json.get<std::string>() : std::string(text);
}

RecordValue value_of(std::string name, const RecordJson& json) {
  if (json.is_null()) return {std::move(name), Kind::Null, ""};
  if (json.is_string()) return {std::move(name), Kind::Text, json.get<std::string>()};
  if (json.is_number()) return {std::move(name), Kind::Number, json.dump()};
  return {std::move(name), json.is_boolean() ? Kind::Word : Kind::Text, compact_json(json)};
}

RecordJson member_of(const RecordJson& json, const char* key) {
  return json.is_object() && json.contains(key) ? json[key] : RecordJson();
}

void add_tasks(const RecordJson& tasks, std::vector<RecordValue>& values) {
  for (const RecordJson& one : tasks) {
    const RecordJson task = member_of(one, "task"), metric = member_of(one, "metric");
    if (!task.is_string() || !metric.is_string()) continue;
    const std::string name =
        fmt::format("eval.{}.{}", task.get<std::string>(), metric.get<std::string>());
    values.push_back(value_of(name, member_of(one, "value")));
    values.push_back(value_of(name + ".stderr", member_of(one, "stderr")));
  }
}

void add_nested(const std::string& name, const RecordJson& json, std::vector<RecordValue>& values) {
  if (name == "eval" && json.is_array()) return add_tasks(json, values);
  if (!json.is_object()) return values.push_back(value_of(name, json));
  for (const auto& [key, inner] : json.items()) add_nested(name + "." + key, inner, values);
}

}  // namespace

std::vector<RecordValue> record_values(std::string_view line) {
  std::vector<RecordValue> values;
  JsonMembers members(line);
  for (JsonMember member; members.next(member);) {
    std::string name = decoded(member.key);
    if (member.kind == Kind::Nested) {
      if (const auto nested = parse_untrusted_json(member.value)) add_nested(name, *nested, values);
    } else if (member.kind == Kind::Text) {
      values.push_back({std::move(name), Kind::Text, decoded(member.value)});
    } else {
      values.push_back({std::move(name), member.kind, std::string(member.value)});
    }
  }
  if (!members.is_complete()) values.clear();
  return values;
}

}  // namespace kintsugi
