#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kintsugi {

// A checkpoint that another one descends from. Names come again after a rollback, ids do not.
struct Ancestor {
  std::string name, id;
  bool operator==(const Ancestor&) const = default;
};

// Where a checkpoint comes from, in lineage.json of its state directory. Checkpoints of older
// versions have none: sequence 0 and no id.
struct Lineage {
  std::int64_t sequence = 0;  // counts the saves into a folder, over all branches
  std::string id;
  std::vector<Ancestor> ancestors;  // the parent is the last; the nearest kMostAncestors
  bool operator==(const Lineage&) const = default;

  bool descends_from(const Ancestor& other) const;
};
constexpr std::size_t kMostAncestors = 1000;

// `content` is whatever distinguishes it from its siblings.
Lineage child_lineage(const std::vector<Ancestor>& ancestors, std::int64_t sequence,
                      const std::string& content);

std::string to_json(const Lineage& lineage);
Lineage read_lineage(const std::filesystem::path& state);

}  // namespace kintsugi
