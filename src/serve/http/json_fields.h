#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "http/http_message.h"

namespace kintsugi {

// The fields of a JSON object from a client. Each function throws an HttpError (400) that names the
// field if its value has another type or is out of range. A field that is null counts as absent.
class JsonFields {
 public:
  using Json = nlohmann::json;

  explicit JsonFields(std::string_view body);  // HttpError unless it is a JSON object
  // An object inside; `name` is how errors call it.
  JsonFields(Json object, std::string name);

  const Json* find(const std::string& field) const;
  const Json& required(const std::string& field) const;
  std::string name_of(const std::string& field) const;  // "stream_options.include_usage"

  std::optional<bool> boolean(const std::string& field) const;
  std::optional<std::int64_t> integer(const std::string& field, std::int64_t low,
                                      std::int64_t high) const;
  std::optional<double> number(const std::string& field, double low, double high) const;
  std::optional<std::string> text(const std::string& field) const;

  // Refuses fields that would change the result, unless they have a value that does not.
  void refuse(std::initializer_list<const char*> fields) const;
  // Refuses fields that no function above was asked for, except `ignored`: a typo would otherwise
  // silently give another result. To be called last.
  void refuse_unknown(std::initializer_list<const char*> ignored = {}) const;

 private:
  mutable std::set<std::string> known_;  // names that were asked for
  Json object_;
  std::string prefix_;
};

// A list of token ids; `name` is for errors.
std::vector<std::int32_t> token_ids(const nlohmann::json& list, const std::string& name);

}  // namespace kintsugi
