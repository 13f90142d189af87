#include "serve/http/json_fields.h"

#include <fmt/format.h>

#include <utility>

#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

// A small body can become large in memory, so its parts are counted while it is parsed.
constexpr int kDeepestBody = 32;
constexpr std::int64_t kMostContainers = 1 << 16, kMostValues = 1 << 22;

nlohmann::json parse_body(std::string_view body) {
  using Json = nlohmann::json;
  std::int64_t containers = 0, values = 0;
  const Json::parser_callback_t count = [&](int depth, Json::parse_event_t event, Json&) {
    using Event = Json::parse_event_t;
    if (event == Event::array_start || event == Event::object_start) ++containers;
    if (event == Event::value) ++values;
    if (depth > kDeepestBody || containers > kMostContainers || values > kMostValues)
      throw HttpError(400, "invalid_json",
                      fmt::format("the body has more than {} levels, {} lists or {} values",
                                  kDeepestBody, kMostContainers, kMostValues));
    return true;
  };
  try {
    Json json = Json::parse(body, count);
    if (!json.is_object()) throw HttpError(400, "invalid_json", "the body is not a JSON object");
    return json;
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at …": the part after the brackets.
    std::string_view text = error.what();
    if (const std::size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
    throw HttpError(400, "invalid_json", fmt::format("the body is not JSON: {}", text));
  }
}

// Values with which an unsupported field changes nothing.
bool is_neutral(const nlohmann::json& value) {
  return value.is_null() || value == false || value == 0 || value == 0.0 || value == "" ||
         ((value.is_object() || value.is_array()) && value.empty());
}

}  // namespace

JsonFields::JsonFields(std::string_view body) : object_(parse_body(body)) {}

JsonFields::JsonFields(Json object, std::string name)
    : object_(std::move(object)), prefix_(name + ".") {
  if (!object_.is_object()) bad_field(name, "must be an object");
}

std::string JsonFields::name_of(const std::string& field) const { return prefix_ + field; }

const nlohmann::json* JsonFields::find(const std::string& field) const {
  known_.insert(field);
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& JsonFields::required(const std::string& field) const {
  const Json* value = find(field);
  if (value == nullptr) bad_field(name_of(field), "is required");
  return *value;
}

std::optional<bool> JsonFields::boolean(const std::string& field) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_boolean()) bad_field(name_of(field), "must be true or false");
  return value->get<bool>();
}

std::optional<std::int64_t> JsonFields::integer(const std::string& field, std::int64_t low,
                                                std::int64_t high) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  // Unsigned numbers above INT64_MAX would wrap.
  const bool fits = value->is_number_unsigned()
                        ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)
                        : value->is_number_integer();
  if (!fits || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high)
    bad_field(name_of(field), fmt::format("must be a whole number from {} to {}", low, high));
  return value->get<std::int64_t>();
}

std::optional<double> JsonFields::number(const std::string& field, double low, double high) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high))
    bad_field(name_of(field), fmt::format("must be a number from {} to {}", low, high));
  return value->get<double>();
}

std::optional<std::string> JsonFields::text(const std::string& field) const {
  const Json* value = find(field);
  if (value == nullptr) return {};
  if (!value->is_string()) bad_field(name_of(field), "must be a string");
  return value->get<std::string>();
}

void JsonFields::refuse(std::initializer_list<const char*> fields) const {
  for (const char* field : fields)
    if (const Json* value = find(field); value != nullptr && !is_neutral(*value))
      throw HttpError(
          400, "unsupported_field",
          fmt::format("{}: is not supported by this server; leave it out", name_of(field)));
}

void JsonFields::refuse_unknown(std::initializer_list<const char*> ignored) const {
  known_.insert(ignored.begin(), ignored.end());
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string near = nearest_word(name, known_);
    throw HttpError(
        400, "unknown_field",
        fmt::format("{}: is not a field of this request{}", printable(name_of(name)),
                    near.empty() ? "; leave it out" : fmt::format("; did you mean '{}'?", near)));
  }
}

std::vector<std::int32_t> token_ids(const nlohmann::json& list, const std::string& name) {
  if (!list.is_array()) bad_field(name, "must be a list of token ids");
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const nlohmann::json& value : list) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT32_MAX)
      bad_field(name, fmt::format("entry {} is not a token id", ids.size()));
    ids.push_back(static_cast<std::int32_t>(value.get<std::uint64_t>()));
  }
  return ids;
}

}  // namespace kintsugi
