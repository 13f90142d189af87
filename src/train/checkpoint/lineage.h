#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kintsugi {

// A checkpoint that another one descends from. Names repeat after a rollback, ids do not.
struct Ancestor {
  std::string name, id;
  bool operator==(const Ancestor&) const = default;
};

// The ancestors of a checkpoint, stored in lineage.json of its state directory. Checkpoints of
// older versions have no such file: sequence 0 and no id.
struct Lineage {
  std::int64_t sequence = 0;  // counts the saves into a folder, over all branches
  std::string id;
  std::vector<Ancestor> ancestors;  // the last kMostAncestors; the parent is the last
  bool operator==(const Lineage&) const = default;

  bool descends_from(const Ancestor& other) const;
};
constexpr std::size_t kMostAncestors = 1000;

// `content` distinguishes the child from its siblings; it is hashed into the id.
Lineage child_lineage(const std::vector<Ancestor>& ancestors, std::int64_t sequence,
                      const std::string& content);

std::string to_json(const Lineage& lineage);
Lineage read_lineage(const std::filesystem::path& state);

}  // namespace kintsugi
