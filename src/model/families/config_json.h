#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/config.h"

namespace kintsugi {

// A JSON object with typed access by key. Every error names the file and the key. A null value
// counts as absent.
class ConfigObject {
 public:
  using Names = std::initializer_list<const char*>;  // alternative names of one key

  ConfigObject(const nlohmann::json& object, std::string source, std::string prefix = "")
      : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{}: {}", source_, fmt::format(format, std::forward<Args>(args)...));
  }

  bool has(const char* name) const { return find({name}).value != nullptr; }

  std::int64_t integer(Names names) const { return required(names, as_integer(find(names))); }
  std::int64_t integer(Names names, std::int64_t absent) const {
    return as_integer(find(names)).value_or(absent);
  }
  double real(Names names) const { return required(names, as_real(find(names))); }
  double real(Names names, double absent) const { return as_real(find(names)).value_or(absent); }

  bool flag(const char* name, bool absent) const {
    const Found found = find({name});
    if (!found.value) return absent;
    if (!found.value->is_boolean()) wrong_type(found, "true or false");
    return found.value->get<bool>();
  }

  std::string text(Names names, const std::string& absent) const {
    const Found found = find(names);
    if (!found.value) return absent;
    if (!found.value->is_string()) wrong_type(found, "a string");
    return found.value->get<std::string>();
  }

  // The object under a key; an empty one when it is absent.
  ConfigObject object(const char* name) const {
    static const nlohmann::json empty = nlohmann::json::object();
    const Found found = find({name});
    if (found.value && !found.value->is_object()) wrong_type(found, "an object");
    return {found.value ? *found.value : empty, source_, fmt::format("{}{}.", prefix_, name)};
  }

  // Reads a token id, or the first of a list of ids; -1: none. transformers writes a family's
  // default ids even for a smaller vocabulary: an id outside the vocabulary counts as none.
  std::int64_t token(const char* name, std::int64_t vocab_size) const {
    Found found = find({name});
    if (found.value && found.value->is_array()) {
      if (found.value->empty()) return -1;
      found.value = &found.value->front();
    }
    const std::int64_t id = as_integer(found).value_or(-1);
    return id >= 0 && id < vocab_size ? id : -1;
  }

  // Settings for which only some values are supported.
  void require_flag(const char* name, bool supported) const {
    if (flag(name, supported) != supported)
      refuse("{}{} is {}, which is not supported (only {})", prefix_, name, !supported, supported);
  }
  void require_text(Names names, Names supported) const {
    const std::string value = text(names, *supported.begin());
    if (std::find(supported.begin(), supported.end(), value) == supported.end())
      refuse("{}{} is '{}', which is not supported (only {})", prefix_, *names.begin(), value,
             fmt::join(supported, ", "));
  }

  // The entries of a list of strings; empty if the key is absent.
  std::vector<std::string> texts(const char* name) const {
    const Found found = find({name});
    std::vector<std::string> all;
    if (!found.value) return all;
    if (!found.value->is_array()) wrong_type(found, "a list of strings");
    for (const nlohmann::json& entry : *found.value) {
      if (!entry.is_string()) wrong_type(found, "a list of strings");
      all.push_back(entry.get<std::string>());
    }
    return all;
  }

  // The entries of a list of whole numbers; empty if the key is absent.
  std::vector<std::int64_t> integers(const char* name) const {
    const Found found = find({name});
    std::vector<std::int64_t> all;
    if (!found.value) return all;
    if (!found.value->is_array()) wrong_type(found, "a list of whole numbers");
    for (const nlohmann::json& entry : *found.value) all.push_back(*as_integer({name, &entry}));
    return all;
  }

  // The values of an object with the keys "0", "1", …, in this order; empty if the key is absent.
  std::vector<std::string> texts_by_number(const char* name) const {
    const Found found = find({name});
    std::vector<std::string> all;
    if (!found.value) return all;
    if (!found.value->is_object()) wrong_type(found, "an object");
    for (std::size_t i = 0; i < found.value->size(); ++i) {
      const auto entry = found.value->find(std::to_string(i));
      if (entry == found.value->end())
        refuse("{}{} has {} entries, but none for {}", prefix_, name, found.value->size(), i);
      if (!entry->is_string()) refuse("{}{}.{} is not a string", prefix_, name, i);
      all.push_back(entry->get<std::string>());
    }
    return all;
  }

  // One type per layer; empty if the key is absent.
  std::vector<LayerType> layer_types(const char* name, std::int64_t layers) const {
    const Found found = find({name});
    std::vector<LayerType> types;
    if (!found.value) return types;
    if (!found.value->is_array()) wrong_type(found, "a list");
    if (static_cast<std::int64_t>(found.value->size()) != layers)
      refuse("{}{} has {} entries, but the model has {} layers", prefix_, name, found.value->size(),
             layers);
    for (const nlohmann::json& entry : *found.value) {
      if (!entry.is_string()) wrong_type(found, "a list of strings");
      try {
        types.push_back(parse_layer_type(entry.get<std::string>()));
      } catch (const UserError& error) {
        refuse("{}{}: {}", prefix_, name, error.what());
      }
    }
    return types;
  }

  // Every entry of the list under a key must have this value.
  void require_all(const char* name, const char* supported) const {
    const Found found = find({name});
    if (!found.value) return;
    if (!found.value->is_array()) wrong_type(found, "a list");
    for (const nlohmann::json& entry : *found.value)
      if (entry != supported)
        refuse("{}{} holds {}, which is not supported (only {})", prefix_, name, entry.dump(),
               supported);
  }

 private:
  struct Found {
    const char* name;
    const nlohmann::json* value;  // nullptr if absent or null
  };

  Found find(Names names) const {
    for (const char* name : names)
      if (const auto it = object_.find(name); it != object_.end() && !it->is_null())
        return {name, &*it};
    return {*names.begin(), nullptr};
  }

  [[noreturn]] void wrong_type(const Found& found, const char* expected) const {
    std::string value = found.value->dump();
    if (value.size() > 40) value = value.substr(0, 40) + "…";
    refuse("{}{} must be {}, not {}", prefix_, found.name, expected, value);
  }

  std::optional<std::int64_t> as_integer(const Found& found) const {
    if (!found.value) return std::nullopt;
    constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!found.value->is_number_integer() ||
        (found.value->is_number_unsigned() && found.value->get<std::uint64_t>() > largest))
      wrong_type(found, "a whole number");
    return found.value->get<std::int64_t>();
  }

  std::optional<double> as_real(const Found& found) const {
    if (!found.value) return std::nullopt;
    if (!found.value->is_number()) wrong_type(found, "a number");
    return found.value->get<double>();
  }

  template <class T>
  T required(Names names, const std::optional<T>& value) const {
    if (!value) refuse("key '{}{}' is missing", prefix_, fmt::join(names, "' or '"));
    return *value;
  }

  const nlohmann::json& object_;
  std::string source_;
  std::string prefix_;
};

// A token's id, or null for none.
inline nlohmann::ordered_json token_or_null(std::int64_t token) {
  return token < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(token);
}

}  // namespace kintsugi
