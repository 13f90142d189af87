#include "core/host/free_memory.h"

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

// What a control group may still allocate; its page cache can be reclaimed.
std::size_t left_in(const fs::path& group, const char* limit, const char* usage,
                    const char* cache) {
  const auto maximum = number(group / limit), used = number(group / usage);
  if (!maximum || !used) return kUnlimited;
  const std::size_t unreclaimable =
      *used - std::min(*used, entry(group / "memory.stat", cache).value_or(0));
  return *maximum - std::min(*maximum, unreclaimable);
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

// The control group of this process in the hierarchy of `controller`; "" means cgroup v2.
std::string group_path(const fs::path& root, const std::string& controller) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size()) continue;
    if (line.substr(first + 1, second - first - 1) == controller)
      return line.substr(second + 2);  // without the leading slash
  }
  return "";
}

}  // namespace

std::size_t free_memory(const fs::path& root) {
  std::size_t least = entry(root / "proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  // Check the group and its parents; in a container, the container's own group is the root.
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
    const auto maximum = own_limit(root, limit), used = entry(root / "proc/self/status", usage);
    if (maximum) least = std::min(least, *maximum - std::min(*maximum, used.value_or(0) * 1024));
  };
  within("Max address space", "VmSize:");
  within("Max data size", "VmData:");
  return least;
}

}  // namespace kintsugi
