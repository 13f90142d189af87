#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// The command and the address of run.notify may contain a secret. Viewers show only that they are
// set.
inline constexpr const char* kHiddenValue = "(set)";

// The text of a run's config.yaml without these values. Other lines stay as they are.
std::string public_config(const std::string& yaml);

// A configuration as dotted keys: "optimizer.lr", "data.train[0].path". Empty if the text is not
// YAML; `problem` then says why. Lists of plain values are one value: "[0.9, 0.95]". Secrets are
// hidden.
using ConfigValues = std::map<std::string, std::string>;
ConfigValues config_values(const std::string& yaml, std::string* problem = nullptr);

struct ConfigDifference {
  std::string key;
  std::vector<std::optional<std::string>> values;  // one per run; empty: it does not have the key
};
std::vector<ConfigDifference> config_differences(const std::vector<ConfigValues>& configs);

}  // namespace kintsugi
