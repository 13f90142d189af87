#include "plan/machines/descriptions.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"

namespace kintsugi {

std::vector<std::string> names_of(const Descriptions& descriptions) {
  std::vector<std::string> names;
  for (const EmbeddedDescription& one : descriptions) names.push_back(one.name);
  return names;
}

DescriptionText find_description(const std::string& kind, const Descriptions& built_in,
                                 const std::string& name_or_path, const std::string& hint) {
  for (const EmbeddedDescription& one : built_in)
    if (one.name == name_or_path) return {one.yaml, kind + " " + one.name};
  if (std::filesystem::is_regular_file(name_or_path))
    return {read_text_file(name_or_path), name_or_path};
  const std::string near = nearest_word(name_or_path, names_of(built_in));
  user_error("there is no {} or file '{}'{}; {}", kind, name_or_path,
             near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), hint);
}

std::optional<DescriptionText> site_machines() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  std::filesystem::path file = variable("KINTSUGI_MACHINES");
  if (!file.empty() && !std::filesystem::is_regular_file(file))
    user_error("KINTSUGI_MACHINES: there is no file '{}'", file.string());
  if (file.empty()) {
    std::filesystem::path folder = variable("XDG_CONFIG_HOME");
    if (folder.empty() && !variable("HOME").empty()) folder = variable("HOME") / ".config";
    if (!folder.is_absolute()) return {};
    file = folder / "kintsugi" / "machines.yaml";
    if (std::error_code ignored; !std::filesystem::is_regular_file(file, ignored)) return {};
  }
  return DescriptionText{read_text_file(file.string()), file.string()};
}

}  // namespace kintsugi
