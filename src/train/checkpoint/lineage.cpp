#include "train/checkpoint/lineage.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/hash.h"

namespace kintsugi {

using Json = nlohmann::ordered_json;

bool Lineage::descends_from(const Ancestor& other) const {
  return std::find(ancestors.begin(), ancestors.end(), other) != ancestors.end();
}

Lineage child_lineage(const std::vector<Ancestor>& ancestors, std::int64_t sequence,
                      const std::string& content) {
  const std::size_t skipped =
      ancestors.size() > kMostAncestors ? ancestors.size() - kMostAncestors : 0;
  const std::string parent = ancestors.empty() ? "" : ancestors.back().id;
  return {.sequence = sequence,
          .id = hex64(hash64(parent + "\n" + content)),
          .ancestors = {ancestors.begin() + static_cast<std::ptrdiff_t>(skipped), ancestors.end()}};
}

std::string to_json(const Lineage& lineage) {
  Json ancestors = Json::array();
  for (const Ancestor& one : lineage.ancestors) ancestors.push_back({one.name, one.id});
  return Json{{"sequence", lineage.sequence}, {"id", lineage.id}, {"ancestors", ancestors}}.dump() +
         "\n";
}

Lineage read_lineage(const std::filesystem::path& state) {
  const std::filesystem::path path = state / "lineage.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  try {
    const Json json = Json::parse(read_text_file(path));
    Lineage lineage;
    lineage.sequence = json.at("sequence").get<std::int64_t>();
    lineage.id = json.at("id").get<std::string>();
    for (const Json& one : json.at("ancestors"))
      lineage.ancestors.push_back({one.at(0).get<std::string>(), one.at(1).get<std::string>()});
    return lineage;
  } catch (const nlohmann::json::exception&) {
    return {};  // load_checkpoint() reports the damage; until then it counts as having no lineage
  }
}

}  // namespace kintsugi
