#include "core/free_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// The number after `key` in a file of "key number …" lines.
std::optional<std::size_t> entry(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  for (std::string name; file >> name; std::getline(file, line))
    if (std::size_t value = 0; name == key && file >> value) return value;
  return std::nullopt;
}

std::optional<std::size_t> number(const fs::path& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

// What a group may still take; the files it only reads from make way.
std::size_t left_in(const fs::path& group, const char* limit, const char* usage,
                    const char* cache) {
  const auto most = number(group / limit), used = number(group / usage);
  if (!most || !used) return kUnlimited;
  const std::size_t firm = *used - std::min(*used, entry(group / "memory.stat", cache).value_or(0));
  return *most - std::min(*most, firm);
}

// The soft limit in a line "Max address space  unlimited  unlimited  bytes" of proc/self/limits.
std::optional<std::size_t> own_limit(const fs::path& root, const std::string& name) {
  std::ifstream file(root / "proc/self/limits");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + " ")) continue;
    std::istringstream words(line.substr(name.size()));
    if (std::size_t value = 0; words >> value) return value;
  }
  return std::nullopt;
}

// The group of this process in the hierarchy with this controller; "" of the second version's only
// one.
std::string group_path(const fs::path& root, const std::string& controller) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size()) continue;
    if (line.substr(first + 1, second - first - 1) == controller)
      return line.substr(second + 2);  // without its slash
  }
  return "";
}

}  // namespace

std::size_t free_memory(const fs::path& root) {
  std::size_t least = entry(root / "proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  // A group and those above it; in a container, its own is the root.
  const auto walk = [&](const fs::path& top, const std::string& group, const char* limit,
                        const char* usage, const char* cache) {
    for (fs::path at = top / group;; at = at.parent_path()) {
      least = std::min(least, left_in(at, limit, usage, cache));
      if (at == top) break;
    }
  };
  const fs::path groups = root / "sys/fs/cgroup";
  walk(groups, group_path(root, ""), "memory.max", "memory.current", "inactive_file");
  walk(groups / "memory", group_path(root, "memory"), "memory.limit_in_bytes",
       "memory.usage_in_bytes", "total_inactive_file");
  return least;
}

std::size_t free_address_space(const fs::path& root) {
  std::size_t least = kUnlimited;
  const auto within = [&](const char* limit, const char* usage) {
    const auto most = own_limit(root, limit), used = entry(root / "proc/self/status", usage);
    if (most) least = std::min(least, *most - std::min(*most, used.value_or(0) * 1024));
  };
  within("Max address space", "VmSize:");
  within("Max data size", "VmData:");
  return least;
}

}  // namespace kintsugi
