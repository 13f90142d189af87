#include "launch/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

namespace kintsugi {
namespace {

// "nid007" is the prefix "nid" and the digits "007".
struct NumberedName {
  std::string prefix, digits;
  bool padded() const { return digits.size() > 1 && digits.front() == '0'; }
};

NumberedName parts_of(const std::string& name) {
  constexpr std::size_t kMostDigits = 15;
  std::size_t at = name.size();
  while (at > 0 && name.size() - at < kMostDigits && name[at - 1] >= '0' && name[at - 1] <= '9')
    --at;
  return {name.substr(0, at), name.substr(at)};
}

// "1-3,7" of {1, 2, 3, 7}, each with at least `width` digits.
std::string ranges_of(const std::set<std::int64_t>& numbers, std::size_t width) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const std::int64_t first = *at;
    std::int64_t last = first;
    for (++at; at != numbers.end() && *at == last + 1; ++at) last = *at;
    text += fmt::format("{}{:0{}}", text.empty() ? "" : ",", first, width);
    if (last > first) text += fmt::format("-{:0{}}", last, width);
  }
  return text;
}

}  // namespace

std::string host_list(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::set<std::pair<std::string, std::size_t>> padded;  // prefix, width
  for (const std::string& name : names)
    if (const NumberedName parts = parts_of(name); parts.padded())
      padded.emplace(parts.prefix, parts.digits.size());
  // By prefix and width; width 0: without leading zeros. 100 joins 098 and 099, but not 98.
  std::map<std::pair<std::string, std::size_t>, std::set<std::int64_t>> groups;
  std::vector<std::string> words;
  for (const std::string& name : names) {
    const NumberedName parts = parts_of(name);
    if (parts.digits.empty()) {
      words.push_back(name);
      continue;
    }
    const bool wide = padded.contains({parts.prefix, parts.digits.size()});
    groups[{parts.prefix, wide ? parts.digits.size() : 0}].insert(
        std::strtoll(parts.digits.c_str(), nullptr, 10));
  }
  for (const auto& [group, numbers] : groups) {
    const std::string ranges = ranges_of(numbers, group.second);
    words.push_back(numbers.size() == 1 ? group.first + ranges
                                        : fmt::format("{}[{}]", group.first, ranges));
  }
  std::sort(words.begin(), words.end());
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

}  // namespace kintsugi
