#include "plan/machines/descriptions.h"

#include <fmt/format.h>

#include <filesystem>

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

}  // namespace kintsugi
