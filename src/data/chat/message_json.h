#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"

namespace kintsugi {

// Parses an object of JSON from outside. UserError if it is no object, is not valid ("not valid
// JSON: expected …"), or is nested too deeply.
nlohmann::json parse_json_object(std::string_view text, const std::string& expected);

// The string at a key of an object; `what` names the object in errors.
std::string json_string(const nlohmann::json& object, const char* key, const std::string& what);

// [{"role": "…", "content": "…"}, …] at the key `name`. An answer with "train": false or
// "weight": 0 is not trained.
std::vector<ChatMessage> messages_of(const nlohmann::json& list, const std::string& name);

}  // namespace kintsugi
