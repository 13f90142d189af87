#pragma once

#include <string>
#include <string_view>

namespace kintsugi {

// The command and the address of run.notify may contain a secret. Viewers show only that they are
// set.
inline constexpr const char* kHiddenValue = "(set)";
bool is_hidden_key(std::string_view key);  // "run.notify.command"

// The text of a run's config.yaml without these values. Other lines stay as they are.
std::string public_config(const std::string& yaml);

}  // namespace kintsugi
